#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "native/metrics/request_recorder.h"
#include "native/metrics/span_buffer.h"
#include "native/rpc/request_trace.h"
#include "native/rpc/unary_call.h"
#include "native/servable/request_reservoir.h"
#include "native/servable/serving_map.h"

namespace millpond::rpc {

// tensorflow.serving.PredictionService/Predict: the hot path. Inline on a poller's thread: no lock,
// no Python, no hand-over.
//
// What it answered it offers to the model's RequestReservoir, after the reply is on its way.
class PredictHandler final : public UnaryHandler {
 public:
  // Borrows all. `unmatched` records the requests that reached no version; the others are recorded
  // by the version that they reached. `spans` takes those whose trace is sampled; null: nothing is
  // traced.
  PredictHandler(servable::ServingMap* map, metrics::RequestRecorder* unmatched,
                 metrics::SpanBuffer* spans)
      : map_(map), unmatched_(unmatched), spans_(spans) {}

  void Handle(UnaryCall* call) override;

 private:
  // A request that a reservoir wants. It holds the reservoir, as the version's handle is let go
  // before the request is copied.
  struct WantedRequest {
    std::shared_ptr<servable::RequestReservoir> reservoir;  // null: nobody wants it
    servable::RequestKind kind;
    int64_t now_ns = 0;
  };

  base::Status ServeAndRecord(UnaryCall* call, grpc::ByteBuffer* message, WantedRequest* wanted,
                              RequestTrace* trace);

  servable::ServingMap* const map_;
  metrics::RequestRecorder* const unmatched_;
  metrics::SpanBuffer* const spans_;
};

// tensorflow.serving.PredictionService/GetModelMetadata. Of its phases it knows queue and run.
class MetadataHandler final : public UnaryHandler {
 public:
  // Borrows all, as PredictHandler.
  MetadataHandler(servable::ServingMap* map, metrics::RequestRecorder* unmatched,
                  metrics::SpanBuffer* spans)
      : map_(map), unmatched_(unmatched), spans_(spans) {}

  void Handle(UnaryCall* call) override;

 private:
  base::StatusOr<std::string> AnswerAndRecord(const UnaryCall& call, RequestTrace* trace);

  servable::ServingMap* const map_;
  metrics::RequestRecorder* const unmatched_;
  metrics::SpanBuffer* const spans_;
};

}  // namespace millpond::rpc
