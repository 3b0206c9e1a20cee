#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "native/base/portioned_count.h"

namespace millpond::base {

// The memory of the server that all clients together may take, over every protocol, for
// connections, calls, requests and replies. Anything that a client causes to exist is held by an
// object with a Share. The object takes the bytes before it takes the memory, and the Share returns
// them when it is destroyed. If there are no bytes for an object, it is not kept.
//
// Thread: any thread at any time; wait-free. Owner: shared by the servers of all protocols; it
// outlives the shares. Cost: an atomic of the thread's own cache line for most changes of a share
// (PortionedCount). If threads take bytes at the same time near the limit, each may cause a refusal
// of another. The limit of a Use is never exceeded.
class ByteBudget {  // NOLINT(clang-analyzer-optin.performance.Padding): no line is shared
 public:
  class Share;

  // The limit of a budget that counts bytes and never refuses any.
  static constexpr int64_t kUnlimited = INT64_MAX;

  // The purpose of bytes. All but the first may exceed the limit by a reserve, so that a server
  // without memory for requests still takes probes and operators' questions, and keeps its
  // connections.
  enum class Use {
    kMessage,     // messages, what they decode to, and replies
    kCall,        // calls, short questions and their answers, new connections
    kConnection,  // the state of connections that live
  };
  // 32 MiB are some 10,000 calls, and a small part of any machine.
  static constexpr int64_t kReserveBytes = int64_t{32} << 20U;

  explicit ByteBudget(int64_t limit_bytes = kUnlimited);
  ByteBudget(const ByteBudget&) = delete;
  ByteBudget& operator=(const ByteBudget&) = delete;

  // Takes `bytes` and returns true. If fewer are left, takes nothing, counts a refusal and returns
  // false.
  bool Take(int64_t bytes, Use use = Use::kMessage);
  void Return(int64_t bytes) { in_use_.Return(bytes); }

  int64_t limit_bytes() const { return limit_bytes_; }
  int64_t in_use_bytes() const { return in_use_.taken(); }
  // The refusals since the start.
  int64_t refused_count() const { return refused_count_.load(std::memory_order_relaxed); }

 private:
  const int64_t limit_bytes_;
  PortionedCount in_use_;
  alignas(64) std::atomic<int64_t> refused_count_{0};
};

// The bytes that one holder has taken from a budget. A share without a budget counts nothing.
class ByteBudget::Share {
 public:
  Share() = default;
  explicit Share(ByteBudget* budget, Use use = Use::kMessage) : budget_(budget), use_(use) {}
  ~Share() { Resize(0); }
  Share(Share&& other) noexcept
      : budget_(std::exchange(other.budget_, nullptr)),
        use_(other.use_),
        bytes_(std::exchange(other.bytes_, 0)) {}
  Share& operator=(Share&& other) noexcept {
    if (this == &other) return *this;
    Resize(0);
    budget_ = std::exchange(other.budget_, nullptr);
    use_ = other.use_;
    bytes_ = std::exchange(other.bytes_, 0);
    return *this;
  }

  // Changes the share to `bytes`. Returns false and changes nothing if the budget has too few bytes
  // left. A share can always shrink.
  bool Resize(int64_t bytes);
  bool Add(int64_t bytes) { return Resize(bytes_ + bytes); }
  // Leaves the bytes taken for ever, because the memory that they stand for stays until the process
  // ends.
  void Abandon() { bytes_ = 0; }

  int64_t bytes() const { return bytes_; }
  const ByteBudget* budget() const { return budget_; }

 private:
  ByteBudget* budget_ = nullptr;
  Use use_ = Use::kMessage;
  int64_t bytes_ = 0;
};

// The bytes of a client's message, with their share.
struct ChargedText {
  std::string text;
  ByteBudget::Share share;
};

}  // namespace millpond::base
