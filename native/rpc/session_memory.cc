#include "native/rpc/session_memory.h"

#include <cstdlib>
#include <cstring>

namespace millpond::rpc {
namespace {

// Each block's size stands before it, in as many bytes as the block's alignment needs.
constexpr size_t kPrefixBytes = alignof(std::max_align_t);

char* StartOf(void* block) { return static_cast<char*>(block) - kPrefixBytes; }

size_t SizeOf(void* block) {
  size_t size = 0;
  std::memcpy(&size, StartOf(block), sizeof size);
  return size;
}

void* Keep(void* start, size_t size) {
  if (start == nullptr) return nullptr;
  std::memcpy(start, &size, sizeof size);
  return static_cast<char*>(start) + kPrefixBytes;
}

}  // namespace

bool SessionMemory::Charge(int64_t bytes) {
  const int64_t in_use_bytes = in_use_bytes_ + bytes;
  // One step is kept, so that a size at the edge of a step does not change the share again and
  // again.
  const bool grows = in_use_bytes > share_.bytes();
  if (grows || in_use_bytes + 2 * kStepBytes < share_.bytes()) {
    const int64_t steps = in_use_bytes / kStepBytes + 1;
    if (!share_.Resize(steps * kStepBytes)) return false;
  }
  in_use_bytes_ = in_use_bytes;
  return true;
}

void* SessionMemory::Malloc(size_t size, void* self) {
  auto* const memory = static_cast<SessionMemory*>(self);
  const auto bytes = static_cast<int64_t>(size + kPrefixBytes);
  if (!memory->Charge(bytes)) return nullptr;
  void* const block = Keep(std::malloc(size + kPrefixBytes), size);
  if (block == nullptr) (void)memory->Charge(-bytes);
  return block;
}

void SessionMemory::Free(void* block, void* self) {
  if (block == nullptr) return;
  (void)static_cast<SessionMemory*>(self)->Charge(
      -static_cast<int64_t>(SizeOf(block) + kPrefixBytes));
  std::free(StartOf(block));
}

void* SessionMemory::Calloc(size_t count, size_t size, void* self) {
  size_t bytes = 0;
  if (__builtin_mul_overflow(count, size, &bytes)) return nullptr;
  void* const block = Malloc(bytes, self);
  if (block != nullptr) std::memset(block, 0, bytes);
  return block;
}

void* SessionMemory::Realloc(void* block, size_t size, void* self) {
  if (block == nullptr) return Malloc(size, self);
  auto* const memory = static_cast<SessionMemory*>(self);
  const int64_t growth = static_cast<int64_t>(size) - static_cast<int64_t>(SizeOf(block));
  if (!memory->Charge(growth)) return nullptr;
  void* const grown = Keep(std::realloc(StartOf(block), size + kPrefixBytes), size);
  if (grown == nullptr) (void)memory->Charge(-growth);
  return grown;
}

}  // namespace millpond::rpc
