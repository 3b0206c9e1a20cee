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

// Theory of operation. A request of 30 bytes may have a reply of terabytes, and a client may
// disconnect while its reply is written. So a reply is made in only one way: ReplyLimits make
// a ReplyBuffer, and a ReplyBuffer makes ReplyBytes. The servers send nothing else. Every encoder
// that writes through a ReplyBuffer therefore obeys the size limit, the memory budget, the deadline
// and the cancellation without any code of its own. The encoder has one duty: to leave its loops
// when ok() becomes false. Whatever it writes after that is thrown away.
namespace millpond::base {

// The limits of one reply and of the work of encoding it. Borrows the budget and the flag.
struct ReplyLimits {
  static constexpr int64_t kNoDeadline = INT64_MAX;

  size_t bytes_max = kMaxReplyBytes;
  ByteBudget* budget = nullptr;       // null: the reply is not counted
  int64_t deadline_ns = kNoDeadline;  // by MonotonicNs's clock
  const std::atomic<bool>* is_cancelled = nullptr;
  ByteBudget::Use use = ByteBudget::Use::kMessage;
};

// A finished reply. Its bytes count in the server's budget until it is destroyed, after it was
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

// The memory that one reply is written into.
//
// If the reply's size can be computed first, call Extend(bytes) once. If not, let the reply grow
// with Append, or with Reserve and Advance. The first failure is final: ok() is false from then on,
// later writes are discarded, and Take returns the failure.
//
// Thread: one. Cost: Append and Reserve compare two pointers. Every kLookBytes bytes they check the
// deadline and the cancellation, which takes a few nanoseconds.
class ReplyBuffer {
 public:
  // The most bytes that one Reserve may request.
  static constexpr size_t kMaxReserveBytes = 4096;

  explicit ReplyBuffer(const ReplyLimits& limits)
      : limits_(limits), share_(limits.budget, limits.use) {}
  ReplyBuffer(const ReplyBuffer&) = delete;
  ReplyBuffer& operator=(const ReplyBuffer&) = delete;

  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }
  // The bytes written so far; 0 if the reply has failed.
  size_t size() const { return ok() ? static_cast<size_t>(position_ - bytes_.get()) : 0; }

  // Fails the reply if its deadline has passed or its request is cancelled. Returns false if the
  // reply has failed. For loops that write nothing, like the computation of a size: call it once
  // every kLookElements elements.
  bool CheckIsWanted();
  static constexpr int64_t kLookElements = 65'536;

  // Fails the reply if `bytes` exceed its limit. For an encoder that can compute a lower bound of
  // the size before it writes anything.
  bool CheckFits(size_t bytes);

  // Makes room for exactly `bytes` more and returns its start. The caller must write all of them.
  // Returns null if the reply has failed.
  char* Extend(size_t bytes);

  // Prepares for a reply of about `bytes`. A hint: the reply may turn out smaller or larger.
  void Expect(size_t bytes);
  // Returns room for `bytes`, at most kMaxReserveBytes; never null. Advance then counts the bytes
  // that were written.
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

  // Fails the reply. For an encoder that finds a value that it cannot write.
  void Fail(Status status);

  // Returns the finished reply, or the failure. May be called once.
  StatusOr<ReplyBytes> Take();

 private:
  // The bytes that a growing reply writes between two checks.
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
  char* position_ = nullptr;  // the next byte to write
  char* soft_end_ = nullptr;  // the end of the bytes that need no check
  // The room for writes after a failure. Its contents are never read.
  char scratch_[kMaxReserveBytes];
};

// Checks if a reply is still wanted, once every kLookElements calls. For loops of tiny steps.
class ReplyLook {
 public:
  explicit ReplyLook(ReplyBuffer* reply) : reply_(reply) {}

  // Counts a step. Returns false if the reply is not wanted any more. Cost: below 1 ns.
  bool Count() {
    if (--left_ > 0) return true;
    const bool is_wanted = reply_->CheckIsWanted();
    left_ = is_wanted ? ReplyBuffer::kLookElements : 0;
    return is_wanted;
  }

 private:
  ReplyBuffer* const reply_;
  int64_t left_ = ReplyBuffer::kLookElements;
};

// Returns a reply with the bytes of `text`.
StatusOr<ReplyBytes> CopyReply(std::string_view text, const ReplyLimits& limits);

}  // namespace millpond::base
