#include "native/tf/session_callables.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "native/tf/status.h"
#include "native/tf/tensor_storage.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/protobuf/config.pb.h"
#include "tensorflow/core/public/session.h"

namespace millpond::tf {
namespace {

using base::Status;
using Names = std::vector<std::string>;

Names SortedOnce(Names names) {
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

// Returns the tensors of `feeds`, sorted by name.
std::vector<tensorflow::Tensor> Sorted(const Names& feeds, const tensor::TensorList& fed) {
  std::vector<size_t> order(feeds.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return feeds[a] < feeds[b]; });
  std::vector<tensorflow::Tensor> sorted;
  sorted.reserve(order.size());
  for (const size_t index : order) sorted.push_back(fed.storage().tensors[index]);
  return sorted;
}

}  // namespace

// A callable for one part of the graph.
class SessionCallables::Part {
 public:
  Part(tensorflow::Session* session, const Key& key) : session_(session) {
    tensorflow::CallableOptions options;
    options.mutable_run_options()->set_inter_op_thread_pool(-1);
    for (const std::string& feed : std::get<0>(key)) options.add_feed(feed);
    for (const std::string& fetch : std::get<1>(key)) options.add_fetch(fetch);
    for (const std::string& target : std::get<2>(key)) options.add_target(target);
    made_ = FromTensorFlow(session->MakeCallable(options, &handle_), "");
  }
  ~Part() {
    if (made_.ok()) session_->ReleaseCallable(handle_).IgnoreError();
  }
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;

  const Status& made() const { return made_; }
  Status Run(const std::vector<tensorflow::Tensor>& fed,
             std::vector<tensorflow::Tensor>* fetched) const {
    MILLPOND_RETURN_IF_ERROR(made_);
    return FromTensorFlow(session_->RunCallable(handle_, fed, fetched, nullptr));
  }

 private:
  tensorflow::Session* const session_;
  tensorflow::Session::CallableHandle handle_ = 0;
  Status made_;
};

SessionCallables::SessionCallables(tensorflow::Session* session) : session_(session) {}
SessionCallables::~SessionCallables() = default;

std::shared_ptr<const SessionCallables::Part> SessionCallables::FindOrMake(const Key& key) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = kept_.find(key);
    if (found != kept_.end()) return found->second;
  }
  auto made = std::make_shared<const Part>(session_, key);
  if (!made->made().ok()) return made;
  const std::lock_guard lock(mutex_);
  if (kept_.size() < kKeptCountMax) return kept_.emplace(key, std::move(made)).first->second;
  return made;
}

Status SessionCallables::Run(const servable::SessionRunNames& names, const tensor::TensorList& fed,
                             tensor::TensorList* fetched) {
  const Key key{SortedOnce(names.feeds), SortedOnce(names.fetches), SortedOnce(names.targets)};
  const std::shared_ptr<const Part> part = FindOrMake(key);
  std::vector<tensorflow::Tensor> result;
  MILLPOND_RETURN_IF_ERROR(part->Run(Sorted(names.feeds, fed), &result));
  const Names& fetches = std::get<1>(key);
  fetched->Reset(names.fetches.size());
  for (size_t i = 0; i < names.fetches.size(); ++i) {
    const auto at = std::lower_bound(fetches.begin(), fetches.end(), names.fetches[i]);
    fetched->storage().tensors[i] = result[at - fetches.begin()];
  }
  return {};
}

size_t SessionCallables::kept_count() {
  const std::lock_guard lock(mutex_);
  return kept_.size();
}

}  // namespace millpond::tf
