#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <string_view>

#include "native/rpc/transport.h"

namespace millpond::rpc {

// The bytes that a connection still has to write. Small pieces are copied and written together.
// Large pieces are borrowed from their owner until the socket has taken them. Not thread-safe.
class OutputQueue {
 public:
  // Copying a piece of up to this size costs less than another piece in a write.
  static constexpr size_t kCopiedBytesMax = 4096;

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  // The bytes that the queue owns. All other bytes belong to their messages.
  size_t copied_bytes() const { return copied_bytes_; }

  void Append(std::string_view bytes) {
    if (pieces_.empty() || pieces_.back().owner != nullptr) pieces_.emplace_back();
    pieces_.back().copied.append(bytes);
    size_ += bytes.size();
    copied_bytes_ += bytes.size();
  }

  // The same for bytes that `owner` keeps alive.
  void Append(std::shared_ptr<const void> owner, std::string_view bytes) {
    if (bytes.size() <= kCopiedBytesMax) return Append(bytes);
    pieces_.push_back({std::move(owner), bytes, {}});
    size_ += bytes.size();
  }

  // Writes until the queue is empty or `transport`, a Transport or another writer, takes no more
  // bytes. Returns kOk if the queue is empty, else the transport's state.
  template <typename Writer>
  Transport::State WriteTo(Writer* transport) {
    while (size_ > 0) {
      iovec parts[kPartCount];
      size_t count = 0;
      for (const Piece& piece : pieces_) {
        if (count == kPartCount) break;
        const std::string_view rest = piece.bytes().substr(count == 0 ? written_ : 0);
        parts[count++] = {const_cast<char*>(rest.data()), rest.size()};
      }
      const Transport::Result result = transport->Write(parts, count);
      if (result.state != Transport::State::kOk) return result.state;
      Remove(result.bytes);
    }
    return Transport::State::kOk;
  }

 private:
  static constexpr size_t kPartCount = 64;

  struct Piece {
    std::shared_ptr<const void> owner;  // null: `copied` has the bytes
    std::string_view borrowed;
    std::string copied;

    std::string_view bytes() const { return owner != nullptr ? borrowed : copied; }
  };

  void Remove(size_t bytes) {
    size_ -= bytes;
    written_ += bytes;
    while (!pieces_.empty() && written_ >= pieces_.front().bytes().size()) {
      written_ -= pieces_.front().bytes().size();
      copied_bytes_ -= pieces_.front().copied.size();
      if (pieces_.size() == 1 && pieces_.front().owner == nullptr &&
          pieces_.front().copied.capacity() <= 4 * kCopiedBytesMax) {
        // The next answer uses its memory again.
        pieces_.front().copied.clear();
        return;
      }
      pieces_.pop_front();
    }
  }

  std::deque<Piece> pieces_;
  size_t written_ = 0;  // of the first piece
  size_t size_ = 0;     // of all bytes to be written
  size_t copied_bytes_ = 0;
};

}  // namespace millpond::rpc
