#pragma once

#include <functional>

#include "native/base/status.h"
#include "native/inference/signature_request.h"
#include "native/servable/prepared_run.h"

namespace millpond::inference {

// A decoded request of any protocol: the run that it asks for, and the function that makes its
// reply from the results.
template <typename Reply>
struct Prepared {
  servable::PreparedRun run;
  // Encodes the results of `run`, which has succeeded, within the reply limits of its context.
  std::function<base::Status(servable::PreparedRun* run, Reply* reply)> encode;
};

// Answers a request by a run of its own: the run, and the encoding.
template <typename Reply>
base::Status AnswerAlone(Prepared<Reply>* prepared, Reply* reply) {
  servable::RunAlone(&prepared->run);
  MILLPOND_RETURN_IF_ERROR(EndRun(&prepared->run));
  return prepared->encode(&prepared->run, reply);
}

}  // namespace millpond::inference
