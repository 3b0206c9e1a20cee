#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "native/base/status.h"
#include "native/servable/session.h"
#include "native/tensor/tensor_list.h"

namespace tensorflow {
class Session;
}  // namespace tensorflow

namespace millpond::tf {

// Runs any part of a session's graph, on the calling thread.
//
// Session::Run would keep an executor for each order of feeds, fetches and targets that any client
// names, until the session closes. So each part of the graph has a callable of its own, for every
// order of its names. The callables of the first parts are kept. All other callables are released
// after their run, and making one takes milliseconds.
//
// Thread: any number of threads at the same time. A mutex guards the kept callables. It is not held
// while a callable is made or run. Lifetime: within the life of the session, which it borrows.
class SessionCallables {
 public:
  // The most callables that are kept. Each holds an executor as large as its part of the graph.
  static constexpr size_t kKeptCountMax = 64;

  explicit SessionCallables(tensorflow::Session* session);
  ~SessionCallables();
  SessionCallables(const SessionCallables&) = delete;
  SessionCallables& operator=(const SessionCallables&) = delete;

  // Runs the part that `names` selects. `fed` is in the order of the feeds; `fetched` gets the
  // fetches in their order. Returns TensorFlow's error if the graph has no such names, or if its
  // kernels refuse the tensors.
  base::Status Run(const servable::SessionRunNames& names, const tensor::TensorList& fed,
                   tensor::TensorList* fetched);

  size_t kept_count();

 private:
  class Part;
  using Key =
      std::tuple<std::vector<std::string>, std::vector<std::string>, std::vector<std::string>>;

  std::shared_ptr<const Part> FindOrMake(const Key& key);

  tensorflow::Session* const session_;
  std::mutex mutex_;
  std::map<Key, std::shared_ptr<const Part>> kept_;  // guarded by mutex_
};

}  // namespace millpond::tf
