#pragma once

#include <nghttp2/nghttp2.h>

#include <cstddef>
#include <cstdint>

#include "native/base/byte_budget.h"

namespace millpond::rpc {

// The memory that nghttp2 allocates for one connection: its streams, their headers, the frames that
// wait for the client. It is counted in a share, in steps, so that a usual call writes to no shared
// cache line. If the budget has no more bytes, nghttp2 gets no memory, and the connection ends.
//
// Thread: one at a time, as nghttp2's session. Outlives the session.
class SessionMemory {
 public:
  static constexpr int64_t kStepBytes = 8 * 1024;

  explicit SessionMemory(base::ByteBudget* budget)
      : share_(budget, base::ByteBudget::Use::kConnection) {}
  SessionMemory(const SessionMemory&) = delete;
  SessionMemory& operator=(const SessionMemory&) = delete;

  nghttp2_mem* callbacks() { return &callbacks_; }
  int64_t in_use_bytes() const { return in_use_bytes_; }

 private:
  static void* Malloc(size_t size, void* self);
  static void Free(void* block, void* self);
  static void* Calloc(size_t count, size_t size, void* self);
  static void* Realloc(void* block, size_t size, void* self);

  bool Charge(int64_t bytes);  // negative: gives back

  base::ByteBudget::Share share_;
  int64_t in_use_bytes_ = 0;
  nghttp2_mem callbacks_{this, Malloc, Free, Calloc, Realloc};
};

}  // namespace millpond::rpc
