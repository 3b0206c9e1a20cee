#include "native/servable/batch_scope.h"

#include <functional>

#include "native/tensor/signature.h"

namespace millpond::servable {
namespace {

// Stands for the signature's name in the key of runs of several signatures. No signature has it.
constexpr std::string_view kSeveralSignatures = "\x01several";

thread_local BatchScope* current_scope = nullptr;

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

BatchScope::BatchScope(WaitingRequests* waiting) : waiting_(waiting), outer_(current_scope) {
  current_scope = this;
}

BatchScope::~BatchScope() { current_scope = outer_; }

BatchScope* BatchScope::Current() { return current_scope; }

std::atomic<int64_t>& BatchingCount() {
  static std::atomic<int64_t> count{0};
  return count;
}

}  // namespace millpond::servable
