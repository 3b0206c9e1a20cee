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
// Requests that name no known model, or no model at all, have one recorder in common: names come
// from clients, and their number is unbounded. A name that was added stays, because counts never go
// down.
//
// Thread: any. Of is wait-free: nodes are added in front of their bucket's list and never removed.
// Cost: Of hashes the name and compares it with the names of one bucket. Memory: some 2 KiB for
// each name, and 14 KiB for each method and code of its requests.
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

  // Gives requests to `models` recorders of their own from now on.
  void Add(const std::vector<std::string>& models);

  // Returns the recorder of `model`, or the common recorder if the name was not added.
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
  std::mutex mutex_;  // for Add and TakeNew
};

}  // namespace millpond::metrics
