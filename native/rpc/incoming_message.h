#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "native/base/byte_budget.h"
#include "native/base/status.h"
#include "native/base/wire_reader.h"
#include "native/rpc/message_encoding.h"
#include "native/rpc/receive_block.h"

namespace millpond::rpc {

// The five bytes before each message: if it is compressed, and its length.
inline constexpr size_t kMessagePrefixBytes = 5;

// The limits of a message, and how it is kept.
struct MessageOptions {
  int64_t bytes_max = INT32_MAX;            // before it is decompressed, and after
  Encoding encoding = Encoding::kIdentity;  // if it is compressed
  base::ByteBudget* budget = nullptr;       // null: the message is not counted
  bool is_of_model = false;      // even a short message has no part of the budget's reserve
  bool is_in_one_piece = false;  // kept as one string, for TakeText
  bool is_bare = false;          // no prefix announces its length: End ends it
};

// Returns the share of the budget from which a message of `bytes` is counted. A short message that
// is no request to a model, and its answer, may use the reserve, because probes and operators need
// answers even while no memory is left.
base::ByteBudget::Use UseOf(int64_t bytes, bool is_of_model);

// One message as it arrives: its prefix, the parts of it that were read, and what it decompresses
// to. All of it counts in its share, as it comes: a client may announce 2 GB and send none.
//
// A long message stays in the blocks into which it was read. Short messages, and short parts of
// long ones, are copied. A message may be moved until it is read, and not after that.
//
// Thread: one at a time.
class IncomingMessage {
 public:
  explicit IncomingMessage(const MessageOptions& options = {});

  // Takes as much of the front of `data` as belongs to the message. `data` lies in the block of
  // `space`. INTERNAL for a malformed prefix; RESOURCE_EXHAUSTED for a message that is too long, or
  // for which the budget has no bytes left.
  base::Status Add(std::string_view* data, ReceiveSpace* space);
  const MessageOptions& options() const { return options_; }
  bool has_begun() const { return prefix_bytes_ > 0; }
  // No more of a bare message comes.
  void End() { announced_bytes_ = arrived_bytes_; }
  // True if all of it has arrived.
  bool is_complete() const {
    return prefix_bytes_ == kMessagePrefixBytes && arrived_bytes_ == announced_bytes_;
  }
  bool is_compressed() const { return is_compressed_; }
  // The length that the client announced. A compressed message has more bytes once it is read.
  size_t bytes() const { return static_cast<size_t>(announced_bytes_); }

  // Makes the message readable: decompresses it, if that was not done before. Returns the reason if
  // it cannot be read; also a later call does.
  const base::Status& Read();
  bool is_read() const { return is_read_; }
  // Frees what it decompressed to, until the next Read: a request that waits takes no more memory
  // than it came with.
  void ForgetRead();
  // The bytes of the message, in place: after Read, until ForgetRead, TakeText or Free.
  base::WireReader reader() const { return {segments_.data(), segments_.size()}; }
  // Returns the first bytes of a compressed message, at most `bytes_max`; "" if it does not
  // decompress.
  std::string StartOf(size_t bytes_max) const {
    return DecompressStart(options_.encoding, raw_segments(), bytes_max);
  }

  // Returns the bytes of a message that was read as one string, and frees those that came. A
  // message in several pieces is copied for it: RESOURCE_EXHAUSTED if the budget has no place for
  // the copy beside them.
  base::StatusOr<base::ChargedText> TakeText();
  void Free();

 private:
  base::Status ReadPrefix();
  base::Status AddBody(std::string_view data, ReceiveSpace* space);
  void AddCopy(std::string_view data);
  void AddSmall(std::string_view data);
  bool is_small() const;
  std::vector<std::string_view> raw_segments() const;

  MessageOptions options_;
  size_t prefix_bytes_ = 0;
  char prefix_[kMessagePrefixBytes];
  bool is_compressed_ = false;
  int64_t announced_bytes_ = 0;
  int64_t arrived_bytes_ = 0;
  base::ByteBudget::Share share_;  // of all bytes below
  std::string small_;              // a short message, or one in one piece
  std::vector<std::string_view> parts_;
  std::vector<std::shared_ptr<const void>> owners_;  // of the parts
  std::shared_ptr<std::string> copy_;                // the last of `owners_` that is a copy
  std::vector<std::string> inflated_;                // the message decompressed
  std::vector<std::string_view> segments_;           // the message as reader() has it
  bool is_read_ = false;
  base::Status read_status_;
};

}  // namespace millpond::rpc
