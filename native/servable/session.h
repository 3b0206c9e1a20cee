#pragma once

#include <string>
#include <vector>

#include "native/base/status.h"
#include "native/tensor/run_context.h"
#include "native/tensor/tensor_list.h"

namespace millpond::servable {

// The names in a SessionRun: tensors like "x:0" to feed and to fetch, and nodes to run for their
// effects.
struct SessionRunNames {
  std::vector<std::string> feeds;  // without duplicates
  std::vector<std::string> fetches;
  std::vector<std::string> targets;
};

// The graph of a servable, of which clients may run any part. Most kinds of servable have none
// (Servable::session). Thread: any number at once.
class Session {
 public:
  Session() = default;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Runs the part of the graph that `names` selects. `fed` is in the order of the feeds; `fetched`
  // gets the fetches in their order. Returns UNIMPLEMENTED if the server does not let clients do
  // that.
  virtual base::Status RunSession(const SessionRunNames& names, const tensor::RunContext& run,
                                  const tensor::TensorList& fed,
                                  tensor::TensorList* fetched) const = 0;

 protected:
  ~Session() = default;
};

}  // namespace millpond::servable
