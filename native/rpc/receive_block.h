#pragma once

#include <cstddef>
#include <memory>

namespace millpond::rpc {

// The memory that a thread reads sockets into. A long message stays in the blocks into which it was
// read, and holds them. A block belongs to one thread, which reads into its free end.
//
// A small part of a message would keep a whole block alive, so a message holds a block only for
// parts of kHeldBytesMin and more.
class ReceiveBlock {
 public:
  static constexpr size_t kBytes = 65'536;
  static constexpr size_t kHeldBytesMin = 4'096;

  char* data() { return bytes_; }

 private:
  char bytes_[kBytes];
};

// The free end of a thread's block. Thread: its owner's alone.
class ReceiveSpace {
 public:
  // Returns memory to read into, of at least kReadBytesMin bytes.
  char* Reserve(size_t* size) {
    // A block that was held may still have messages in it, so the bytes in use are kept.
    if (!is_held_) used_ = 0;
    if (block_ == nullptr || ReceiveBlock::kBytes - used_ < kReadBytesMin) Renew();
    *size = ReceiveBlock::kBytes - used_;
    return block_->data() + used_;
  }
  // Marks the first `size` bytes of the last Reserve as in use.
  void Use(size_t size) { used_ += size; }
  // Returns the block of the last Reserve, for a message that keeps a part of it.
  const std::shared_ptr<ReceiveBlock>& Hold() {
    is_held_ = true;
    return block_;
  }

 private:
  static constexpr size_t kReadBytesMin = 16'384;

  void Renew() {
    // Not by make_shared, which would clear the bytes.
    block_ = std::shared_ptr<ReceiveBlock>(new ReceiveBlock);
    used_ = 0;
    is_held_ = false;
  }

  std::shared_ptr<ReceiveBlock> block_;
  size_t used_ = 0;
  bool is_held_ = false;
};

}  // namespace millpond::rpc
