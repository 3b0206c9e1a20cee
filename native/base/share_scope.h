#pragma once

#include <cstdint>
#include <string>

#include "native/base/byte_budget.h"
#include "native/base/reply_buffer.h"
#include "native/base/status.h"

namespace millpond::base {

// Counts what this thread decodes in `share` while the scope lives, and says if the request that it
// decodes is still wanted. Decoders take no argument for it. A thread without a scope counts
// nothing.
//
// A request of 30 bytes may decode to terabytes. So before a decoder makes anything, it adds the
// bytes of it, and it looks at the deadline in loops whose length the client sets (DecodeLook).
class ShareScope {
 public:
  // Bytes are added to the share in steps of this size at least, so that small requests write to no
  // shared cache line. A scope goes on with the bytes that the outer scope has not added yet. So a
  // thread has less than one step that is not counted, however many requests it decodes within each
  // other (batches).
  static constexpr int64_t kStepBytes = 64 * 1024;

  // Borrows the share, and the flag of `limits`. The deadline and the flag may end the decoding.
  explicit ShareScope(ByteBudget::Share* share, const ReplyLimits& limits = {});
  ~ShareScope();
  ShareScope(const ShareScope&) = delete;
  ShareScope& operator=(const ShareScope&) = delete;

  // Adds `bytes` to the share of this thread. Returns false if the budget has too few bytes left.
  static bool Add(int64_t bytes);
  // Returns base::NoMemoryFor of the budget of this thread's share. Only to be called after Add has
  // returned false.
  static Status NoMemoryFor(const std::string& what);
  // Returns CANCELLED or DEADLINE_EXCEEDED if this thread's request is not wanted any more.
  static Status CheckIsWanted();

 private:
  ByteBudget::Share* const share_;
  const ReplyLimits limits_;
  ShareScope* const outer_;
  int64_t pending_bytes_;  // added here or in the outer scopes, and in no share yet
};

// Looks if the thread's request is still wanted, once every kLookSteps steps. For loops of tiny
// steps over what a client sends.
class DecodeLook {
 public:
  static constexpr int64_t kLookSteps = 65'536;

  // Counts `steps`. Returns false if the request is not wanted any more: status() has the reason.
  // Cost: below 1 ns.
  bool Count(int64_t steps = 1) {
    left_ -= steps;
    return left_ > 0 || Look();
  }
  const Status& status() const { return status_; }

 private:
  bool Look();

  int64_t left_ = kLookSteps;
  Status status_;
};

}  // namespace millpond::base
