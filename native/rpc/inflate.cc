#include "native/rpc/inflate.h"

#include <grpc/slice.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "native/base/no_memory.h"

namespace millpond::rpc {
namespace {

using base::InflateStream;
using base::Status;

constexpr int64_t kFirstBlockBytes = 4096;

// One stream, and the blocks that it is decompressed to: each as large as all before it.
class Inflater {
 public:
  Inflater(base::DeflateFormat format, int64_t bytes_max, base::ByteBudget::Share* share)
      : bytes_max_(bytes_max), share_(share), stream_(format) {}

  Status Feed(const grpc::Slice& slice) {
    if (!stream_.is_made()) {
      return {base::Code::kResourceExhausted, "no memory to decompress a message"};
    }
    std::string_view input(reinterpret_cast<const char*>(slice.begin()), slice.size());
    auto state = InflateStream::State::kGoesOn;
    do {
      if (room_bytes_ == 0) MILLPOND_RETURN_IF_ERROR(AddBlock());
      size_t written_bytes = 0;
      state = stream_.Inflate(&input, room_, room_bytes_, &written_bytes);
      room_ += written_bytes;
      room_bytes_ -= written_bytes;
      if (OutputBytes() > bytes_max_) return TooLong();
    } while (state == InflateStream::State::kGoesOn && (!input.empty() || room_bytes_ == 0));
    has_ended_ = state == InflateStream::State::kHasEnded;
    return state == InflateStream::State::kIsBroken || !input.empty() ? Broken() : Status();
  }

  bool has_ended() const { return has_ended_; }

  std::vector<grpc::Slice> TakeOutput() {
    if (room_bytes_ > 0) {
      grpc::Slice& last = blocks_.back();
      last = last.sub(0, last.size() - room_bytes_);
    }
    return std::move(blocks_);
  }

  static Status Broken() {
    return base::Internal("the message does not decompress by the grpc-encoding of its call");
  }

 private:
  int64_t OutputBytes() const { return block_bytes_ - static_cast<int64_t>(room_bytes_); }

  // One byte above the limit tells a stream that is too long from one that just fits.
  Status AddBlock() {
    const int64_t wanted = std::max(kFirstBlockBytes, block_bytes_);
    const auto size = static_cast<size_t>(std::min(wanted, bytes_max_ + 1 - block_bytes_));
    if (share_ != nullptr && !share_->Resize(share_->bytes() + static_cast<int64_t>(size))) {
      return base::NoMemoryFor("a message of at least " + std::to_string(block_bytes_) +
                                   " bytes once it is decompressed",
                               *share_->budget());
    }
    grpc_slice block = grpc_slice_malloc_large(size);
    room_ = reinterpret_cast<char*>(GRPC_SLICE_START_PTR(block));
    room_bytes_ = size;
    blocks_.emplace_back(block, grpc::Slice::STEAL_REF);
    block_bytes_ += static_cast<int64_t>(size);
    return {};
  }

  Status TooLong() const {
    return {base::Code::kResourceExhausted,
            "the message is longer than " + std::to_string(bytes_max_) +
                " bytes once it is decompressed: its method or --grpc_max_message_bytes allows no "
                "more; send less"};
  }

  const int64_t bytes_max_;
  base::ByteBudget::Share* const share_;  // may be null
  InflateStream stream_;
  bool has_ended_ = false;
  std::vector<grpc::Slice> blocks_;
  int64_t block_bytes_ = 0;
  char* room_ = nullptr;  // what is left of the last block
  size_t room_bytes_ = 0;
};

}  // namespace

Status Inflate(base::DeflateFormat format, const std::vector<grpc::Slice>& from, int64_t bytes_max,
               std::vector<grpc::Slice>* to, base::ByteBudget::Share* share) {
  Inflater inflater(format, bytes_max, share);
  for (const grpc::Slice& slice : from) {
    if (slice.size() == 0) continue;
    if (inflater.has_ended()) return Inflater::Broken();
    MILLPOND_RETURN_IF_ERROR(inflater.Feed(slice));
  }
  if (!inflater.has_ended()) return Inflater::Broken();
  *to = inflater.TakeOutput();
  return {};
}

}  // namespace millpond::rpc
