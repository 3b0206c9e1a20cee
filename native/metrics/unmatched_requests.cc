#include "native/metrics/unmatched_requests.h"

#include <functional>

namespace millpond::metrics {

UnmatchedRequests::~UnmatchedRequests() {
  for (std::atomic<Node*>& bucket : buckets_) {
    for (Node* node = bucket.load(); node != nullptr;) {
      const std::unique_ptr<Node> owned(node);
      node = owned->next;
    }
  }
}

void UnmatchedRequests::Add(const std::vector<std::string>& models) {
  const std::lock_guard lock(mutex_);
  for (const std::string& model : models) {
    if (model.empty() || Find(model) != nullptr) continue;
    std::atomic<Node*>& bucket = BucketOf(model);
    auto recorder = std::make_shared<RequestRecorder>(MethodRecorder::Use::kRare);
    auto node = std::make_unique<Node>(Node{{model, std::move(recorder)}, bucket.load()});
    bucket.store(node.release(), std::memory_order_release);
  }
}

RequestRecorder& UnmatchedRequests::Of(std::string_view model) const {
  const Node* const node = model.empty() ? nullptr : Find(model);
  return node == nullptr ? *common_ : *node->model.recorder;
}

std::vector<UnmatchedRequests::Model> UnmatchedRequests::TakeNew() {
  const std::lock_guard lock(mutex_);
  std::vector<Model> taken;
  for (const std::atomic<Node*>& bucket : buckets_) {
    for (Node* node = bucket.load(); node != nullptr; node = node->next) {
      if (node->is_taken || !node->model.recorder->MayHaveRequests()) continue;
      node->is_taken = true;
      taken.push_back(node->model);
    }
  }
  return taken;
}

const UnmatchedRequests::Node* UnmatchedRequests::Find(std::string_view model) const {
  const Node* node = BucketOf(model).load(std::memory_order_acquire);
  while (node != nullptr && node->model.name != model) node = node->next;
  return node;
}

std::atomic<UnmatchedRequests::Node*>& UnmatchedRequests::BucketOf(std::string_view model) const {
  return buckets_[std::hash<std::string_view>()(model) % kBucketCount];
}

}  // namespace millpond::metrics
