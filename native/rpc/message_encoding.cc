#include "native/rpc/message_encoding.h"

#include <zlib.h>

#include <algorithm>
#include <climits>

#include "native/base/no_memory.h"
#include "native/rpc/grpc_text.h"

namespace millpond::rpc {
namespace {

using base::InflateStream;
using base::Status;

constexpr int64_t kFirstBlockBytes = 4096;

// A smaller reply fits into one packet without compression.
constexpr size_t kCompressedReplyBytesMin = 1024;

// Decompresses one stream into blocks. Each block is as large as all blocks before it.
class Inflater {
 public:
  Inflater(base::DeflateFormat format, int64_t bytes_max, base::ByteBudget::Share* share)
      : bytes_max_(bytes_max), share_(share), stream_(format) {}

  Status Feed(std::string_view input) {
    if (!stream_.is_made()) {
      return {base::Code::kResourceExhausted, "no memory to decompress a message"};
    }
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

  std::vector<std::string> TakeOutput() {
    if (room_bytes_ > 0) blocks_.back().resize(blocks_.back().size() - room_bytes_);
    return std::move(blocks_);
  }

  static Status Broken() {
    return base::Internal("the message does not decompress by the grpc-encoding of its call");
  }

 private:
  int64_t OutputBytes() const { return block_bytes_ - static_cast<int64_t>(room_bytes_); }

  // The blocks have room for one byte above the limit, which shows that a stream is too long.
  Status AddBlock() {
    const int64_t wanted = std::max(kFirstBlockBytes, block_bytes_);
    const auto size = static_cast<size_t>(std::min(wanted, bytes_max_ + 1 - block_bytes_));
    if (!share_->Resize(share_->bytes() + static_cast<int64_t>(size))) {
      return base::NoMemoryFor("a message of at least " + std::to_string(block_bytes_) +
                                   " bytes once it is decompressed",
                               *share_->budget());
    }
    blocks_.emplace_back(size, '\0');
    room_ = blocks_.back().data();
    room_bytes_ = size;
    block_bytes_ += static_cast<int64_t>(size);
    return {};
  }

  Status TooLong() const {
    return {base::Code::kResourceExhausted,
            "the message is longer than " + std::to_string(bytes_max_) +
                " bytes once it is decompressed: its method or --max_request_bytes allows no "
                "more; send less"};
  }

  const int64_t bytes_max_;
  base::ByteBudget::Share* const share_;
  InflateStream stream_;
  bool has_ended_ = false;
  std::vector<std::string> blocks_;
  int64_t block_bytes_ = 0;
  char* room_ = nullptr;  // the free end of the last block
  size_t room_bytes_ = 0;
};

// gRPC's deflate is zlib's format.
base::DeflateFormat FormatOf(Encoding encoding) {
  return encoding == Encoding::kGzip ? base::DeflateFormat::kGzip : base::DeflateFormat::kZlib;
}

Encoding EncodingFor(ReplyCompression replies, Encoding request_encoding) {
  switch (replies) {
    case ReplyCompression::kLikeRequest:
      return request_encoding;
    case ReplyCompression::kDeflate:
      return Encoding::kDeflate;
    case ReplyCompression::kGzip:
      return Encoding::kGzip;
    case ReplyCompression::kNone:
      break;
  }
  return Encoding::kIdentity;
}

}  // namespace

Encoding EncodingOf(std::string_view name) {
  if (name.empty() || name == "identity") return Encoding::kIdentity;
  if (name == "gzip") return Encoding::kGzip;
  if (name == "deflate") return Encoding::kDeflate;
  return Encoding::kUnknown;
}

const char* NameOf(Encoding encoding) {
  if (encoding == Encoding::kGzip) return "gzip";
  return encoding == Encoding::kDeflate ? "deflate" : "identity";
}

Status Decompress(Encoding encoding, const std::vector<std::string_view>& from, int64_t bytes_max,
                  std::vector<std::string>* to, base::ByteBudget::Share* share) {
  // gRPC's specification of compression asks for INTERNAL.
  if (encoding == Encoding::kIdentity) {
    return base::Internal(
        "the message is marked as compressed, and its call has no grpc-encoding; send the header "
        "grpc-encoding, or the message as it is");
  }
  if (encoding == Encoding::kUnknown) {
    return {base::Code::kUnimplemented,
            "the message is compressed, and the grpc-encoding of its call is none of gzip and "
            "deflate; send it as one of these, or as it is"};
  }
  Inflater inflater(FormatOf(encoding), bytes_max, share);
  for (const std::string_view part : from) {
    if (part.empty()) continue;
    if (inflater.has_ended()) return Inflater::Broken();
    MILLPOND_RETURN_IF_ERROR(inflater.Feed(part));
  }
  if (!inflater.has_ended()) return Inflater::Broken();
  *to = inflater.TakeOutput();
  return {};
}

std::string DecompressStart(Encoding encoding, const std::vector<std::string_view>& from,
                            size_t bytes_max) {
  if (encoding == Encoding::kIdentity || encoding == Encoding::kUnknown) return "";
  InflateStream stream(FormatOf(encoding));
  std::string start(stream.is_made() ? bytes_max : 0, '\0');
  size_t size = 0;
  for (std::string_view part : from) {
    auto state = InflateStream::State::kGoesOn;
    while (!part.empty() && size < start.size() && state == InflateStream::State::kGoesOn) {
      size_t written_bytes = 0;
      state = stream.Inflate(&part, start.data() + size, start.size() - size, &written_bytes);
      size += written_bytes;
    }
    if (state != InflateStream::State::kGoesOn) break;
  }
  start.resize(size);
  return start;
}

Encoding ChooseReplyEncoding(ReplyCompression replies, Encoding request_encoding,
                             std::string_view accepted, size_t reply_bytes) {
  if (replies == ReplyCompression::kNone || reply_bytes < kCompressedReplyBytesMin) {
    return Encoding::kIdentity;
  }
  const Encoding encoding = EncodingFor(replies, request_encoding);
  const bool is_accepted =
      encoding != Encoding::kUnknown && ListContains(accepted, NameOf(encoding));
  return is_accepted ? encoding : Encoding::kIdentity;
}

base::StatusOr<base::ReplyBytes> Compress(Encoding encoding, std::string_view message,
                                          const base::ReplyLimits& limits) {
  constexpr int kWindowBits = 15;
  constexpr int kGzipWrapper = 16;
  constexpr int kMemoryLevel = 8;
  // zlib counts in 32 bits.
  constexpr size_t kPieceBytes = size_t{1} << 20U;
  base::ReplyBuffer compressed(limits);
  z_stream stream{};
  const int window_bits = encoding == Encoding::kGzip ? kWindowBits + kGzipWrapper : kWindowBits;
  if (deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, window_bits, kMemoryLevel,
                   Z_DEFAULT_STRATEGY) != Z_OK) {
    return Status(base::Code::kResourceExhausted, "no memory to compress a reply");
  }
  int result = Z_OK;
  while (result == Z_OK && compressed.ok()) {
    if (stream.avail_in == 0) {
      const std::string_view piece = message.substr(0, kPieceBytes);
      message.remove_prefix(piece.size());
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(piece.data()));
      stream.avail_in = static_cast<uInt>(piece.size());
    }
    constexpr size_t kRoomBytes = base::ReplyBuffer::kMaxReserveBytes;
    stream.next_out = reinterpret_cast<Bytef*>(compressed.Reserve(kRoomBytes));
    stream.avail_out = static_cast<uInt>(kRoomBytes);
    result = deflate(&stream, message.empty() ? Z_FINISH : Z_NO_FLUSH);
    compressed.Advance(kRoomBytes - stream.avail_out);
    if (stream.avail_in == 0 && !message.empty()) compressed.CheckIsWanted();
  }
  deflateEnd(&stream);
  if (compressed.ok() && result != Z_STREAM_END) {
    return base::Internal("zlib could not compress a reply");
  }
  return compressed.Take();
}

}  // namespace millpond::rpc
