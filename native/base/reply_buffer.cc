#include "native/base/reply_buffer.h"

#include <algorithm>
#include <string>
#include <utility>

#include "native/base/clock.h"
#include "native/base/no_memory.h"

namespace millpond::base {
namespace {

// The first allocation of a reply that grows.
constexpr size_t kFirstBytes = 512;

// The largest expected size that is allocated at once. A larger reply grows by doubling.
constexpr size_t kMaxExpectedBytes = size_t{1} << 20U;

Status TooLarge(const char* how, size_t bytes, size_t bytes_max) {
  return {Code::kResourceExhausted, "the reply takes " + std::string(how) + std::to_string(bytes) +
                                        " bytes, and --max_reply_bytes allows " +
                                        std::to_string(bytes_max) +
                                        "; ask for fewer rows or outputs, or raise the flag"};
}

}  // namespace

void ReplyBuffer::Fail(Status status) {
  if (!status_.ok()) return;
  status_ = std::move(status);
  // Keeps the memory: an encoder may still hold a pointer into it.
  UseScratch();
}

void ReplyBuffer::UseScratch() { position_ = soft_end_ = scratch_; }

bool ReplyBuffer::CheckIsWanted() {
  if (!status_.ok()) return false;
  if (limits_.is_cancelled != nullptr && limits_.is_cancelled->load(std::memory_order_relaxed)) {
    Fail({Code::kCancelled, "the request was cancelled while its reply was written"});
  } else if (limits_.deadline_ns != ReplyLimits::kNoDeadline &&
             CoarseMonotonicNs() >= limits_.deadline_ns) {
    Fail({Code::kDeadlineExceeded, "the request's deadline passed while its reply was written"});
  }
  return status_.ok();
}

bool ReplyBuffer::CheckFits(size_t bytes) {
  if (!status_.ok()) return false;
  if (bytes > limits_.bytes_max) Fail(TooLarge("at least ", bytes, limits_.bytes_max));
  return status_.ok();
}

bool ReplyBuffer::Grow(size_t capacity) {
  if (!share_.Resize(static_cast<int64_t>(capacity))) {
    Fail(NoMemoryFor("a reply of " + std::to_string(capacity) + " bytes", *share_.budget()));
    return false;
  }
  const size_t used = size();
  auto* const grown = static_cast<char*>(std::realloc(bytes_.get(), std::max<size_t>(capacity, 1)));
  if (grown == nullptr) {
    Fail({Code::kResourceExhausted,
          "no memory for a reply of " + std::to_string(capacity) + " bytes; ask for less"});
    return false;
  }
  (void)bytes_.release();  // realloc has freed the block, or returned it again
  bytes_.reset(grown);
  capacity_ = capacity;
  position_ = grown + used;
  return true;
}

char* ReplyBuffer::Extend(size_t bytes) {
  if (!CheckIsWanted()) return nullptr;
  const size_t used = size();
  if (bytes > limits_.bytes_max || used > limits_.bytes_max - bytes) {
    Fail(TooLarge("", used + std::min(bytes, SIZE_MAX - used), limits_.bytes_max));
    return nullptr;
  }
  if (bytes_ == nullptr || capacity_ - used < bytes) {
    if (!Grow(used + bytes)) return nullptr;
  }
  char* const to = position_;
  position_ += bytes;
  soft_end_ = position_;
  return to;
}

void ReplyBuffer::Expect(size_t bytes) {
  if (!CheckIsWanted() || capacity_ > 0) return;
  const size_t expected = std::min({bytes, kMaxExpectedBytes, limits_.bytes_max});
  if (Grow(std::max(expected, kFirstBytes))) soft_end_ = position_;
}

void ReplyBuffer::MakeRoom(size_t bytes) {
  if (!CheckIsWanted()) return UseScratch();
  const size_t used = size();
  if (used > limits_.bytes_max) {
    Fail(TooLarge("more than ", limits_.bytes_max, limits_.bytes_max));
    return;
  }
  if (capacity_ - used < bytes) {
    // Exceeds the limit by at most the part of this one piece that the reply may not use.
    const size_t doubled = std::min(2 * capacity_, limits_.bytes_max);
    if (!Grow(std::max({doubled, used + bytes, kFirstBytes}))) return;
  }
  soft_end_ = position_ + std::min(capacity_ - used, std::max(kLookBytes, bytes));
}

void ReplyBuffer::AppendInPieces(std::string_view text) {
  while (!text.empty() && ok()) {
    const size_t piece = std::min(text.size(), kMaxReserveBytes);
    std::memcpy(Reserve(piece), text.data(), piece);
    Advance(piece);
    text.remove_prefix(piece);
  }
}

StatusOr<ReplyBytes> ReplyBuffer::Take() {
  if (CheckIsWanted() && size() > limits_.bytes_max) {
    Fail(TooLarge("", size(), limits_.bytes_max));
  }
  if (!status_.ok()) return status_;
  ReplyBytes reply;
  reply.size_ = size();
  reply.bytes_ = std::move(bytes_);
  reply.share_ = std::move(share_);
  capacity_ = 0;
  UseScratch();
  return {std::move(reply)};
}

StatusOr<ReplyBytes> CopyReply(std::string_view text, const ReplyLimits& limits) {
  ReplyBuffer buffer(limits);
  char* const to = buffer.Extend(text.size());
  if (to != nullptr && !text.empty()) std::memcpy(to, text.data(), text.size());
  return buffer.Take();
}

}  // namespace millpond::base
