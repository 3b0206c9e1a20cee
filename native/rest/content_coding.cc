#include "native/rest/content_coding.h"

#include <zlib.h>

#include <algorithm>
#include <cctype>
#include <cstdint>

#include "native/base/inflate_stream.h"
#include "native/base/no_memory.h"

namespace millpond::rest {
namespace {

using base::DeflateFormat;
using base::InflateStream;
using base::Status;

// zlib's windowBits: the largest window, with gzip's header and trailer.
constexpr int kGzipWindowBits = 15 + 16;

// The bytes that are compressed between two checks that the reply is still wanted. zlib counts in
// 32 bits.
constexpr size_t kGzipPieceBytes = size_t{1} << 20U;
constexpr size_t kFirstBlockBytes = 16 * 1024;
constexpr int kDefaultMemoryLevel = 8;  // zlib's default

// Inflates one stream, or several members of gzip, one after the other.
class Inflater {
 public:
  Inflater(DeflateFormat format, std::string_view coded, size_t max_bytes, std::string* body,
           base::ByteBudget::Share* share)
      : coded_(coded), max_bytes_(max_bytes), body_(body), share_(share), stream_(format) {}

  Status Run(bool takes_members) {
    if (!stream_.is_made()) return {base::Code::kResourceExhausted, "no memory to inflate a body"};
    MILLPOND_RETURN_IF_ERROR(RunStream());
    while (takes_members && !coded_.empty()) {
      stream_.Reset();
      MILLPOND_RETURN_IF_ERROR(RunStream());
    }
    if (!coded_.empty()) return Broken("has bytes after its end");
    body_->resize(used_);
    return {};
  }

 private:
  Status RunStream() {
    auto state = InflateStream::State::kGoesOn;
    while (state != InflateStream::State::kHasEnded) {
      if (used_ == body_->size()) MILLPOND_RETURN_IF_ERROR(Grow());
      size_t written_bytes = 0;
      state =
          stream_.Inflate(&coded_, body_->data() + used_, body_->size() - used_, &written_bytes);
      used_ += written_bytes;
      if (used_ > max_bytes_) return TooLarge();
      if (state == InflateStream::State::kIsBroken) return Broken("does not inflate");
      const bool wants_input =
          state == InflateStream::State::kGoesOn && coded_.empty() && used_ < body_->size();
      if (wants_input) return Broken("is cut short");
    }
    return {};
  }

  // Grows the body to at most one byte above the limit. That byte distinguishes a body that is too
  // large from a body that just fits.
  Status Grow() {
    const size_t size = std::min(std::max(2 * used_, kFirstBlockBytes), max_bytes_ + 1);
    if (size <= body_->size()) return TooLarge();
    if (share_ != nullptr && !share_->Resize(static_cast<int64_t>(size))) {
      return base::NoMemoryFor(
          "a body of at least " + std::to_string(used_) + " bytes once it is inflated",
          *share_->budget());
    }
    body_->resize(size);
    return {};
  }

  Status TooLarge() const {
    return {base::Code::kResourceExhausted, "the body is larger than " +
                                                std::to_string(max_bytes_) +
                                                " bytes once it is inflated; send less at a time"};
  }
  static Status Broken(const char* what) {
    return base::InvalidArgument(std::string("the body ") + what +
                                 " by the Content-Encoding that its request names");
  }

  std::string_view coded_;  // the bytes that are not inflated yet
  const size_t max_bytes_;
  std::string* const body_;
  base::ByteBudget::Share* const share_;  // may be null
  size_t used_ = 0;
  InflateStream stream_;
};

// True if `coded` begins with zlib's header, which HTTP's deflate has and some clients leave out.
// The two bytes of a header are a multiple of 31, and its low four bits mean "deflate".
bool HasZlibHeader(std::string_view coded) {
  if (coded.size() < 2) return true;
  const auto first = static_cast<unsigned char>(coded[0]);
  const auto second = static_cast<unsigned char>(coded[1]);
  return (first & 15) == Z_DEFLATED && (first * 256 + second) % 31 == 0;
}

std::string Trimmed(std::string_view header) {
  std::string name;
  for (const char c : header) {
    if (c != ' ' && c != '\t')
      name += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return name;
}

}  // namespace

base::StatusOr<ContentCoding> ParseContentCoding(std::string_view header) {
  const std::string name = Trimmed(header);
  if (name.empty() || name == "identity") return ContentCoding::kIdentity;
  if (name == "gzip" || name == "x-gzip") return ContentCoding::kGzip;
  if (name == "deflate") return ContentCoding::kDeflate;
  return base::InvalidArgument("unknown Content-Encoding '" + std::string(header) +
                               "'; use gzip, deflate or identity");
}

Status Inflate(ContentCoding coding, std::string_view coded, size_t max_bytes, std::string* body,
               base::ByteBudget::Share* share) {
  body->clear();
  if (coding == ContentCoding::kIdentity) {
    if (coded.size() > max_bytes) {
      return {base::Code::kResourceExhausted,
              "the body is larger than " + std::to_string(max_bytes) + " bytes"};
    }
    *body = coded;
    return {};
  }
  const bool is_gzip = coding == ContentCoding::kGzip;
  const auto format = is_gzip                ? DeflateFormat::kGzip
                      : HasZlibHeader(coded) ? DeflateFormat::kZlib
                                             : DeflateFormat::kRaw;
  return Inflater(format, coded, max_bytes, body, share).Run(is_gzip);
}

base::StatusOr<base::ReplyBytes> Gzip(std::string_view body, const base::ReplyLimits& limits) {
  base::ReplyBuffer coded(limits);
  z_stream stream{};
  if (deflateInit2(&stream, Z_BEST_SPEED, Z_DEFLATED, kGzipWindowBits, kDefaultMemoryLevel,
                   Z_DEFAULT_STRATEGY) != Z_OK) {
    return Status(base::Code::kResourceExhausted, "no memory to gzip a body");
  }
  int result = Z_OK;
  while (result == Z_OK && coded.ok()) {
    if (stream.avail_in == 0) {
      const std::string_view piece = body.substr(0, kGzipPieceBytes);
      body.remove_prefix(piece.size());
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(piece.data()));
      stream.avail_in = static_cast<uInt>(piece.size());
    }
    constexpr size_t kRoomBytes = base::ReplyBuffer::kMaxReserveBytes;
    stream.next_out = reinterpret_cast<Bytef*>(coded.Reserve(kRoomBytes));
    stream.avail_out = static_cast<uInt>(kRoomBytes);
    result = deflate(&stream, body.empty() ? Z_FINISH : Z_NO_FLUSH);
    coded.Advance(kRoomBytes - stream.avail_out);
    if (stream.avail_in == 0 && !body.empty()) coded.CheckIsWanted();
  }
  deflateEnd(&stream);
  if (coded.ok() && result != Z_STREAM_END) return base::Internal("zlib could not gzip a body");
  return coded.Take();
}

}  // namespace millpond::rest
