#include "native/rpc/predict_service.h"

#include "native/base/clock.h"
#include "native/rpc/metadata.h"
#include "native/rpc/predict.h"
#include "native/rpc/predict_codec.h"

namespace millpond::rpc {
namespace {

using base::Status;

Status LookUp(const PredictRequest& request, servable::ServingMap* map,
              servable::ServableHandle* handle) {
  MILLPOND_RETURN_IF_ERROR(CheckModelSpec(request.model_spec));
  auto found = map->LookUp(request.model_spec->name, request.model_spec->version);
  if (!found.ok()) return found.status();
  *handle = std::move(found.value());
  return {};
}

// The request's story up to the reply's bytes. `handle` is set as soon as a version is pinned, and
// pins it until the bytes, whose tensors may alias its parameters, are laid out.
Status Serve(UnaryCall* call, servable::ServingMap* map, servable::ServableHandle* handle,
             grpc::ByteBuffer* message) {
  PredictRequest request;
  MILLPOND_RETURN_IF_ERROR(DecodePredictRequest(call->request(), &request));
  MILLPOND_RETURN_IF_ERROR(LookUp(request, map, handle));
  MILLPOND_RETURN_IF_ERROR(call->CheckIsWanted());
  PredictReply reply;
  MILLPOND_RETURN_IF_ERROR(Predict(**handle, request, call->run_context(), &reply));
  const PredictReplyEncoder encoder(reply);
  *message = UnaryCall::MakeMessage(encoder.encoded_bytes(), [&](char* to) { encoder.Write(to); });
  return {};
}

}  // namespace

void PredictHandler::Handle(UnaryCall* call) {
  grpc::ByteBuffer message;
  const Status status = ServeAndRecord(call, &message);
  if (status.ok()) {
    call->Reply(message);
  } else {
    call->Fail(status);
  }
}

// Recorded, and the version let go, before the answer is sent: who has it finds it counted.
Status PredictHandler::ServeAndRecord(UnaryCall* call, grpc::ByteBuffer* message) {
  servable::ServableHandle handle;
  Status status = Serve(call, map_, &handle, message);
  metrics::RequestRecorder& requests = handle ? handle.requests() : *unmatched_;
  requests.Record(status.code(), base::MonotonicNs() - call->received_ns());
  return status;
}

void MetadataHandler::Handle(UnaryCall* call) {
  const base::StatusOr<std::string> reply = GetModelMetadata(call->request(), map_);
  return reply.ok() ? call->Reply(reply.value()) : call->Fail(reply.status());
}

}  // namespace millpond::rpc
