#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "native/base/reply_buffer.h"
#include "native/base/status.h"
#include "native/base/wire_reader.h"
#include "native/inference/model_spec.h"
#include "native/metrics/request_phases.h"
#include "native/servable/servable.h"
#include "native/tf/run_context.h"

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
  // The names of feeds and fetches are those of the signature that model_spec names.
  bool has_alias_names = false;
  int64_t timeout_ms = 0;  // of RunOptions; 0: none
  bool is_traced = false;  // RunOptions asks for a trace of the run
};

// INVALID_ARGUMENT where the bytes are no SessionRunRequest, or name more tensors and nodes than
// base::kMaxNamesPerRequest. Borrows them.
base::Status DecodeSessionRunRequest(base::WireReader proto, SessionRunRequest* request);

// Answers the request with a serialized SessionRunResponse, without metadata. The run ends at the
// deadline of `run`, or once timeout_ms have passed since `now_ns`, whichever is first; what else
// RunOptions may say is not looked at.
//
// INVALID_ARGUMENT: nothing to fetch and no target, a feed named twice, an alias that the signature
// has not, a tensor that is none. UNIMPLEMENTED: a trace is asked for; the version was not loaded
// for SessionRun. Else what TensorFlow says.
base::Status AnswerSessionRun(const servable::Servable& servable, const SessionRunRequest& request,
                              const tf::RunContext& run, int64_t now_ns, base::ReplyBytes* reply,
                              metrics::PhaseWatch* watch = nullptr);

}  // namespace millpond::inference
