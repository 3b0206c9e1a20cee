#include "native/base/inflate_stream.h"

#include <algorithm>

namespace millpond::base {
namespace {

// The most bytes of one zlib call, which counts them in 32 bits.
constexpr size_t kMaxStepBytes = size_t{1} << 30U;

// Returns zlib's windowBits: the size of the largest window, with the format of the wrapper.
int WindowBits(DeflateFormat format) {
  constexpr int kWindowBits = 15;
  constexpr int kGzipBit = 16;
  switch (format) {
    case DeflateFormat::kGzip:
      return kWindowBits | kGzipBit;
    case DeflateFormat::kRaw:
      return -kWindowBits;
    case DeflateFormat::kZlib:
      break;
  }
  return kWindowBits;
}

}  // namespace

InflateStream::InflateStream(DeflateFormat format)
    : is_made_(inflateInit2(&stream_, WindowBits(format)) == Z_OK) {}

InflateStream::~InflateStream() {
  if (is_made_) inflateEnd(&stream_);
}

InflateStream::State InflateStream::Inflate(std::string_view* input, char* output,
                                            size_t output_bytes, size_t* written_bytes) {
  const size_t in_bytes = std::min(input->size(), kMaxStepBytes);
  const size_t out_bytes = std::min(output_bytes, kMaxStepBytes);
  stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(input->data()));
  stream_.avail_in = static_cast<uInt>(in_bytes);
  stream_.next_out = reinterpret_cast<Bytef*>(output);
  stream_.avail_out = static_cast<uInt>(out_bytes);
  const int result = inflate(&stream_, Z_NO_FLUSH);
  input->remove_prefix(in_bytes - stream_.avail_in);
  *written_bytes = out_bytes - stream_.avail_out;
  if (result == Z_STREAM_END) return State::kHasEnded;
  // Z_BUF_ERROR: no progress was possible with the given input and output.
  return result == Z_OK || result == Z_BUF_ERROR ? State::kGoesOn : State::kIsBroken;
}

void InflateStream::Reset() { inflateReset(&stream_); }

}  // namespace millpond::base
