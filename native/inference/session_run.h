#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "native/base/reply_buffer.h"
#include "native/base/status.h"
#include "native/base/wire_reader.h"
#include "native/inference/model_spec.h"
#include "native/metrics/request_recorder.h"
#include "native/servable/servable.h"
#include "native/tensor/run_context.h"

namespace millpond::inference {

// A SessionRunRequest (tensorflow_serving/apis/session_service.proto): tensors of a version's graph
// to feed and to fetch, and nodes to run. The tensors point into the network's buffers.
struct SessionRunRequest {
  struct Feed {
    std::string name;
    base::WireReader tensor;  // a serialized TensorProto
  };

  std::optional<ModelSpec> model_spec;
  std::vector<Feed> feeds;
  std::vector<std::string> fetches;
  std::vector<std::string> targets;
  // True if feeds and fetches are named as in the signature that model_spec names.
  bool has_alias_names = false;
  int64_t timeout_ms = 0;  // of RunOptions; 0: no timeout
  bool is_traced = false;  // RunOptions asks for a trace of the run
};

// Decodes a request that borrows the bytes. Returns INVALID_ARGUMENT if they are not a
// SessionRunRequest, or name more tensors and nodes than base::kMaxNamesPerRequest.
base::Status DecodeSessionRunRequest(base::WireReader proto, SessionRunRequest* request);

// Answers the request with a serialized SessionRunResponse, without metadata. The run ends at the
// deadline of `run`, or once timeout_ms have passed since `now_ns`, whichever is first. Other
// fields of RunOptions are ignored.
//
// Returns INVALID_ARGUMENT if the request has neither a fetch nor a target, names a feed twice, or
// has an alias that the signature does not have or bytes that are not a tensor. Returns
// UNIMPLEMENTED if a trace is requested, or if the version was not loaded for SessionRun. Otherwise
// returns TensorFlow's error.
base::Status AnswerSessionRun(const servable::Servable& servable, const SessionRunRequest& request,
                              const tensor::RunContext& run, int64_t now_ns,
                              base::ReplyBytes* reply, metrics::PhaseWatch* watch = nullptr);

}  // namespace millpond::inference
