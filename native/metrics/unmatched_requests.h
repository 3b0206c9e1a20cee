#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "native/metrics/request_recorder.h"

namespace millpond::metrics {

// The recorders of the requests that name a model and reach no version of it.
//
// A request that names no known model, or none at all, has one recorder in common: names come from
// clients, and there is no end to them. A name that was added stays, since counts never go down.
//
// Thread: any. Of is wait-free: nodes are added in front of their bucket's list and never removed.
// Cost: Of hashes the name and compares it with those of one bucket. Memory: some 2 KiB for each
// name, 14 KiB more for each method and code that it was refused with.
class UnmatchedRequests {
 public:
  struct Model {
    std::string name;
    std::shared_ptr<RequestRecorder> recorder;
  };

  UnmatchedRequests() = default;
  ~UnmatchedRequests();
  UnmatchedRequests(const UnmatchedRequests&) = delete;
  UnmatchedRequests& operator=(const UnmatchedRequests&) = delete;

  // From now on requests to `models` have recorders of their own.
  void Add(const std::vector<std::string>& models);

  // Returns the recorder of `model`, or the common one if the name was not added.
  RequestRecorder& Of(std::string_view model) const;
  const std::shared_ptr<RequestRecorder>& common() const { return common_; }

  // Returns the models that have had requests here and were not returned before.
  std::vector<Model> TakeNew();

 private:
  struct Node {
    Model model;
    Node* next = nullptr;
    bool is_taken = false;  // guarded by mutex_
  };
  static constexpr size_t kBucketCount = 1'024;

  const Node* Find(std::string_view model) const;
  std::atomic<Node*>& BucketOf(std::string_view model) const;

  const std::shared_ptr<RequestRecorder> common_ = std::make_shared<RequestRecorder>();
  mutable std::array<std::atomic<Node*>, kBucketCount> buckets_{};
  std::mutex mutex_;  // of those that add and take
};

}  // namespace millpond::metrics
