#include "native/servable/batch_queue.h"

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "native/tensor/signature.h"

namespace millpond::servable {
namespace {

// Stands for the signature's name in the key of runs of several signatures. No signature has this
// name.
constexpr std::string_view kSeveralSignatures = "\x01several";

std::mutex limits_mutex;
// The limits of each key, the last one last; guarded by limits_mutex.
std::map<BatchKey, std::vector<int64_t>>& Limits() {
  static std::map<BatchKey, std::vector<int64_t>> limits;
  return limits;
}
std::atomic<int64_t> smallest_limit{INT64_MAX};

// Needs limits_mutex.
void FindSmallestLimit() {
  int64_t smallest = INT64_MAX;
  for (const auto& [key, limits] : Limits()) smallest = std::min(smallest, limits.back());
  smallest_limit.store(smallest, std::memory_order_relaxed);
}

}  // namespace

BatchKey BatchKeyOf(std::string_view model_name, std::string_view signature_name) {
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15ULL;
  if (signature_name.empty()) signature_name = tensor::kDefaultSignatureName;
  const std::hash<std::string_view> hash;
  const uint64_t key = hash(model_name) * kOdd ^ hash(signature_name);
  return key == kNoBatchKey ? kOdd : key;
}

BatchKey BatchKeyOfSeveral(std::string_view model_name) {
  return BatchKeyOf(model_name, kSeveralSignatures);
}

WaitingLimit::WaitingLimit(BatchKey key, int64_t waiting_max)
    : key_(key), waiting_max_(waiting_max) {
  if (waiting_max_ == 0) return;
  const std::lock_guard<std::mutex> lock(limits_mutex);
  Limits()[key_].push_back(waiting_max_);
  FindSmallestLimit();
}

WaitingLimit::~WaitingLimit() {
  if (waiting_max_ == 0) return;
  const std::lock_guard<std::mutex> lock(limits_mutex);
  const auto own = Limits().find(key_);
  own->second.erase(std::find(own->second.begin(), own->second.end(), waiting_max_));
  if (own->second.empty()) Limits().erase(own);
  FindSmallestLimit();
}

// A load may hold the lock and have lost its core. In that case one more request may wait than the
// limit allows.
int64_t WaitingLimit::Of(BatchKey key) {
  const std::unique_lock<std::mutex> lock(limits_mutex, std::try_to_lock);
  if (!lock) return INT64_MAX;
  const auto found = Limits().find(key);
  return found == Limits().end() ? INT64_MAX : found->second.back();
}

base::Status WaitingLimit::Refusal() {
  return {base::Code::kUnavailable,
          "the queue of this signature is full (max_enqueued_batches); try again later, or use "
          "another server"};
}

int64_t WaitingLimit::smallest() { return smallest_limit.load(std::memory_order_relaxed); }

std::atomic<int64_t>& BatchingCount() {
  static std::atomic<int64_t> count{0};
  return count;
}

}  // namespace millpond::servable
