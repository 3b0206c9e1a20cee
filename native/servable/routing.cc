#include "native/servable/routing.h"

#include <algorithm>

#include "native/base/clock.h"

namespace millpond::servable {
namespace {

// The finalizer of splitmix64: each bit of the argument changes each bit of the result with
// probability one half.
uint64_t MixBits(uint64_t bits) {
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9ULL;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebULL;
  return bits ^ (bits >> 31);
}

// Returns FNV-1a of `value`, mixed. It is written out, because std::hash may differ between the
// servers of a fleet. A change of this function moves users from one version to the other.
uint64_t StickyHash(std::string_view value) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char byte : value) {
    hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3ULL;
  }
  return MixBits(hash);
}

// Returns the next bits of this thread's splitmix64.
uint64_t RandomBits() {
  thread_local uint64_t state =
      reinterpret_cast<uintptr_t>(&state) ^ static_cast<uint64_t>(base::MonotonicNs());
  state += 0x9e3779b97f4a7c15ULL;
  return MixBits(state);
}

// Returns a share in [0, 1) made of as many bits as a double holds exactly. So a weight of 1 takes
// all requests and a weight of 0 takes none of them.
double ToShare(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

bool IsMetadataKey(std::string_view key) {
  return std::all_of(key.begin(), key.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
  });
}

}  // namespace

base::Status CheckRouting(const Routing& routing) {
  // Written so that NaN is refused.
  if (!(routing.canary_weight >= 0 && routing.canary_weight <= 1)) {
    return base::InvalidArgument("canary_weight is " + std::to_string(routing.canary_weight) +
                                 "; give a share of the requests, from 0 to 1");
  }
  if (!IsMetadataKey(routing.canary_header)) {
    return base::InvalidArgument(
        "canary_header '" + routing.canary_header +
        "' is not a key of gRPC metadata, which is in lower case; use a-z, 0-9, '-', '_' and '.'");
  }
  return {};
}

bool IsForCanary(const Routing& routing, const RequestMetadata& metadata) {
  std::optional<std::string_view> sticky_value;
  if (!routing.canary_header.empty()) sticky_value = metadata.Find(routing.canary_header);
  return ToShare(sticky_value ? StickyHash(*sticky_value) : RandomBits()) < routing.canary_weight;
}

}  // namespace millpond::servable
