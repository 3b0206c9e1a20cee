#include "native/servable/batch_queue.h"

#include <functional>

#include "native/tensor/signature.h"

namespace millpond::servable {
namespace {

// Stands for the signature's name in the key of runs of several signatures. No signature has this
// name.
constexpr std::string_view kSeveralSignatures = "\x01several";

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

}  // namespace millpond::servable
