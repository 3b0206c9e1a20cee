#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

#include "native/base/byte_budget.h"
#include "native/base/limits.h"
#include "native/base/status.h"

// Theory of operation. A request of 30 bytes may have a reply of terabytes, and a client may go
// away while its reply is written. So there is one way to make a reply: a ReplyBuffer, made of
// ReplyLimits, becomes ReplyBytes, and the servers send nothing else. An encoder that writes
// through a ReplyBuffer has the limit, the budget, the deadline and the cancellation, whether it
// thinks of them or not. What is left to the encoder is to leave its loops once ok() is false:
// what it writes after that is thrown away.
namespace millpond::base {

// What bounds one reply, and the work of encoding it. Borrows the budget and the flag.
struct ReplyLimits {
  static constexpr int64_t kNoDeadline = INT64_MAX;

  size_t bytes_max = kMaxReplyBytes;
  ByteBudget* budget = nullptr;       // null: the reply is not counted
  int64_t deadline_ns = kNoDeadline;  // on MonotonicNs's clock
  const std::atomic<bool>* is_cancelled = nullptr;
};

// A finished reply. It counts in the server's budget until it is destroyed, which is after it was
// sent. Only a ReplyBuffer makes one. A value.
class ReplyBytes {
 public:
  ReplyBytes() = default;

  const char* data() const { return bytes_.get(); }
  size_t size() const { return size_; }
  std::string_view view() const { return {bytes_.get(), size_}; }

 private:
  friend class ReplyBuffer;

  struct Free {
    void operator()(char* bytes) const { std::free(bytes); }
  };

  ByteBudget::Share share_;
  std::unique_ptr<char, Free> bytes_;
  size_t size_ = 0;
};

// Memory that one reply is written into.
//
// Use it sized, if the reply's size can be worked out first: Extend(bytes) once. Or let it grow:
// Append, or Reserve and Advance. The first failure stays: ok() is false from then on, writes go
// nowhere, and Take returns the failure.
//
// Thread: one. Cost: Append and Reserve compare two pointers. Every kLookBytes bytes it looks at
// deadline and cancellation, a few nanoseconds.
class ReplyBuffer {
 public:
  // The most that one Reserve may ask for.
  static constexpr size_t kMaxReserveBytes = 4096;

  explicit ReplyBuffer(const ReplyLimits& limits) : limits_(limits), share_(limits.budget) {}
  ReplyBuffer(const ReplyBuffer&) = delete;
  ReplyBuffer& operator=(const ReplyBuffer&) = delete;

  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }
  // Bytes written so far.
  size_t size() const { return ok() ? static_cast<size_t>(position_ - bytes_.get()) : 0; }

  // Looks at deadline and cancellation; false once the reply is not wanted any more. For loops that
  // write nothing, like those that work a size out: once every kLookElements elements.
  bool IsWanted();
  static constexpr int64_t kLookElements = 65'536;

  // Fails the reply if it will have more than the limit: for an encoder that can work out a lower
  // bound of the size before it writes anything.
  bool CheckFits(size_t bytes);

  // Makes room for exactly `bytes` more, which the caller writes: all of them, or the reply fails.
  // Null if the reply has failed.
  char* Extend(size_t bytes);

  // Prepares for a reply of about `bytes`. A hint: more or fewer may be written.
  void Expect(size_t bytes);
  // Room for `bytes`, kMaxReserveBytes at most; Advance counts those that were written. Never null.
  char* Reserve(size_t bytes) {
    if (soft_end_ - position_ < static_cast<ptrdiff_t>(bytes)) MakeRoom(bytes);
    return position_;
  }
  void Advance(size_t bytes) { position_ += bytes; }
  void Append(std::string_view text) {
    if (soft_end_ - position_ < static_cast<ptrdiff_t>(text.size())) return AppendInPieces(text);
    if (text.empty()) return;
    std::memcpy(position_, text.data(), text.size());
    position_ += text.size();
  }

  // Gives the reply up as failed, for an encoder that finds something it cannot write.
  void Fail(Status status);

  // The finished reply, or why there is none. Once.
  StatusOr<ReplyBytes> Take();

 private:
  // Between two looks of a growing reply.
  static constexpr size_t kLookBytes = 65'536;

  void MakeRoom(size_t bytes);
  void AppendInPieces(std::string_view text);
  bool Grow(size_t capacity);
  void UseScratch();

  const ReplyLimits limits_;
  Status status_;
  ByteBudget::Share share_;
  std::unique_ptr<char, ReplyBytes::Free> bytes_;
  size_t capacity_ = 0;
  char* position_ = nullptr;  // the next byte
  char* soft_end_ = nullptr;  // up to where nothing has to be looked at
  // What is written once the reply has failed lands here.
  char scratch_[kMaxReserveBytes];
};

// Looks whether a reply is wanted once every kLookElements calls, for loops of tiny steps.
class ReplyLook {
 public:
  explicit ReplyLook(ReplyBuffer* reply) : reply_(reply) {}

  // Counts a step; false once the reply is not wanted any more. Cost: below 1 ns.
  bool Count() {
    if (--left_ > 0) return true;
    const bool is_wanted = reply_->IsWanted();
    left_ = is_wanted ? ReplyBuffer::kLookElements : 0;
    return is_wanted;
  }

 private:
  ReplyBuffer* const reply_;
  int64_t left_ = ReplyBuffer::kLookElements;
};

// A reply with the bytes of `text`.
StatusOr<ReplyBytes> CopyReply(std::string_view text, const ReplyLimits& limits);

}  // namespace millpond::base
