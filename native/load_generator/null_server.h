#pragma once

#include <memory>
#include <string>

#include "native/base/status.h"

namespace millpond::load_generator {

// A server that answers each call with the same bytes, so that a run against it measures the
// generator. It serves from Start until its destruction, which cancels the calls in flight.
class NullServer {
 public:
  explicit NullServer(const std::string& reply);
  ~NullServer();
  NullServer(const NullServer&) = delete;
  NullServer& operator=(const NullServer&) = delete;

  // Listens on a free port of 127.0.0.1, and returns the port.
  base::StatusOr<int> Start();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace millpond::load_generator
