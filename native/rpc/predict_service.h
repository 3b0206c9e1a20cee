#pragma once

#include "native/metrics/request_recorder.h"
#include "native/rpc/unary_call.h"
#include "native/servable/serving_map.h"

namespace millpond::rpc {

// tensorflow.serving.PredictionService/Predict: the hot path. Inline on a poller's thread: no lock,
// no Python, no hand-over.
class PredictHandler final : public UnaryHandler {
 public:
  // Borrows both. `unmatched` records the requests that reached no version; the others are recorded
  // by the version that they reached.
  PredictHandler(servable::ServingMap* map, metrics::RequestRecorder* unmatched)
      : map_(map), unmatched_(unmatched) {}

  void Handle(UnaryCall* call) override;

 private:
  base::Status ServeAndRecord(UnaryCall* call, grpc::ByteBuffer* message);

  servable::ServingMap* const map_;
  metrics::RequestRecorder* const unmatched_;
};

// tensorflow.serving.PredictionService/GetModelMetadata.
class MetadataHandler final : public UnaryHandler {
 public:
  explicit MetadataHandler(servable::ServingMap* map) : map_(map) {}

  void Handle(UnaryCall* call) override;

 private:
  servable::ServingMap* const map_;
};

}  // namespace millpond::rpc
