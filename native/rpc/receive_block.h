#pragma once

#include <cstddef>
#include <memory>

namespace millpond::rpc {

// What threads read sockets into. A long message stays where it was read: its parts hold the
// blocks. One block belongs to one thread, which reads into what nobody holds.
//
// A part may keep a whole block alive, so that only parts of kHeldBytesMin and more hold one.
class ReceiveBlock {
 public:
  static constexpr size_t kBytes = 65'536;
  static constexpr size_t kHeldBytesMin = 4'096;

  char* data() { return bytes_; }

 private:
  char bytes_[kBytes];
};

// The free end of a thread's block.
class ReceiveSpace {
 public:
  // Returns room for kReadBytesMin and more.
  char* Reserve(size_t* size) {
    // A block that was ever held is not written again where its parts may be.
    if (!is_held_) used_ = 0;
    if (block_ == nullptr || ReceiveBlock::kBytes - used_ < kReadBytesMin) Renew();
    *size = ReceiveBlock::kBytes - used_;
    return block_->data() + used_;
  }
  // So many of the bytes of the last Reserve were read.
  void Use(size_t size) { used_ += size; }
  // Returns the block of the last Reserve, for a part of what was read into it.
  const std::shared_ptr<ReceiveBlock>& Hold() {
    is_held_ = true;
    return block_;
  }

 private:
  static constexpr size_t kReadBytesMin = 16'384;

  void Renew() {
    // Not make_shared: it would clear the bytes.
    block_ = std::shared_ptr<ReceiveBlock>(new ReceiveBlock);
    used_ = 0;
    is_held_ = false;
  }

  std::shared_ptr<ReceiveBlock> block_;
  size_t used_ = 0;
  bool is_held_ = false;
};

}  // namespace millpond::rpc
