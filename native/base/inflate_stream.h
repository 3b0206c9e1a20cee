#pragma once

#include <zlib.h>

#include <cstddef>
#include <string_view>

namespace millpond::base {

// The wrapper around a deflate stream.
enum class DeflateFormat { kZlib, kGzip, kRaw };

// The decompression of one stream. Not thread-safe.
class InflateStream {
 public:
  enum class State {
    kGoesOn,  // needs more input, or more room for output
    kHasEnded,
    kIsBroken,
  };

  explicit InflateStream(DeflateFormat format);
  ~InflateStream();
  InflateStream(const InflateStream&) = delete;
  InflateStream& operator=(const InflateStream&) = delete;

  // False if there was no memory for the stream. No other method may be called then.
  bool is_made() const { return is_made_; }

  // Decompresses from the front of `*input` to `output`. Removes the bytes that it has read from
  // `*input`, and sets `*written_bytes` to the bytes written. Reads and writes up to 1 GiB a call.
  State Inflate(std::string_view* input, char* output, size_t output_bytes, size_t* written_bytes);

  // Starts another stream of the same format.
  void Reset();

 private:
  z_stream stream_{};
  bool is_made_ = false;
};

}  // namespace millpond::base
