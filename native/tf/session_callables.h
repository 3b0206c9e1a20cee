#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "native/base/status.h"
#include "native/tf/tensor_list.h"

namespace tensorflow {
class Session;
}  // namespace tensorflow

namespace millpond::tf {

// What a SessionRun names of a graph: tensors like "x:0", and nodes to run for what they do.
struct SessionRunNames {
  std::vector<std::string> feeds;  // none twice
  std::vector<std::string> fetches;
  std::vector<std::string> targets;
};

// Runs any part of a session's graph, on the calling thread.
//
// Session::Run would keep an executor for each order of feeds, fetches and targets that any client
// ever names, until the session closes. So a part of the graph is run by a callable of its own,
// whatever order it is named in: those of the first parts are kept, the others are released after
// their run, and making one takes milliseconds.
//
// Thread: any number at once. A mutex guards what is kept, and is not held while anything is made
// or run. Lifetime: within that of the session, which it borrows.
class SessionCallables {
 public:
  // Each holds an executor as large as its part of the graph.
  static constexpr size_t kKeptCountMax = 64;

  explicit SessionCallables(tensorflow::Session* session);
  ~SessionCallables();
  SessionCallables(const SessionCallables&) = delete;
  SessionCallables& operator=(const SessionCallables&) = delete;

  // `fed` is in the order of the feeds, `fetched` gets the fetches in theirs. What TensorFlow says
  // of names that the graph has not, or of tensors that its kernels do not take.
  base::Status Run(const SessionRunNames& names, const TensorList& fed, TensorList* fetched);

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
