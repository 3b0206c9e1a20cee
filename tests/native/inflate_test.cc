#include "native/rpc/inflate.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <cstdint>
#include <string>
#include <vector>

namespace millpond::rpc {
namespace {

constexpr int kGzipWindowBits = 15 + 16;
constexpr int kZlibWindowBits = 15;

std::string Deflated(const std::string& text, int window_bits = kGzipWindowBits) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, window_bits, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string compressed(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = text.size();
  stream.next_out = reinterpret_cast<Bytef*>(compressed.data());
  stream.avail_out = compressed.size();
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  compressed.resize(stream.total_out);
  deflateEnd(&stream);
  return compressed;
}

// Returns the bytes as the network delivers them: cut into slices of that many bytes.
std::vector<grpc::Slice> Slices(const std::string& bytes, size_t slice_bytes) {
  std::vector<grpc::Slice> slices;
  for (size_t i = 0; i < bytes.size(); i += slice_bytes)
    slices.emplace_back(bytes.substr(i, slice_bytes));
  return slices;
}

std::string Joined(const std::vector<grpc::Slice>& slices) {
  std::string bytes;
  for (const grpc::Slice& slice : slices)
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return bytes;
}

std::string Text(size_t size) {
  std::string text;
  for (int64_t i = 0; text.size() < size; ++i) text += std::to_string(i * i);
  text.resize(size);
  return text;
}

base::Status InflateWhole(const std::string& bytes, int64_t bytes_max, std::string* text) {
  std::vector<grpc::Slice> inflated;
  const base::Status status =
      Inflate(base::DeflateFormat::kGzip, Slices(bytes, 1000), bytes_max, &inflated);
  *text = Joined(inflated);
  return status;
}

TEST(InflateTest, ReturnsTheOriginalHoweverItIsCut) {
  for (const size_t size : {0UL, 1UL, 4095UL, 4096UL, 4097UL, 1'000'000UL}) {
    for (const size_t slice_bytes : {1UL, 7UL, 100'000UL}) {
      const std::string text = Text(size);
      std::vector<grpc::Slice> gzip;
      std::vector<grpc::Slice> zlib;
      EXPECT_TRUE(Inflate(base::DeflateFormat::kGzip, Slices(Deflated(text), slice_bytes),
                          static_cast<int64_t>(size), &gzip)
                      .ok());
      EXPECT_TRUE(Inflate(base::DeflateFormat::kZlib,
                          Slices(Deflated(text, kZlibWindowBits), slice_bytes),
                          static_cast<int64_t>(size), &zlib)
                      .ok());
      EXPECT_TRUE(Joined(gzip) == text) << size << " in slices of " << slice_bytes;
      EXPECT_TRUE(Joined(zlib) == text) << size << " in slices of " << slice_bytes;
    }
  }
}

TEST(InflateTest, OneByteAboveTheLimitIsRefusedWithTheLimit) {
  std::string text;
  EXPECT_TRUE(InflateWhole(Deflated(Text(10'000)), 10'000, &text).ok());
  const base::Status status = InflateWhole(Deflated(Text(10'001)), 10'000, &text);
  EXPECT_EQ(status.code(), base::Code::kResourceExhausted);
  EXPECT_NE(status.message().find("10000 bytes"), std::string::npos) << status.message();
}

TEST(InflateTest, BrokenCutOrTrailedStreamsAreRefused) {
  const std::string whole = Deflated(Text(10'000));
  std::string changed = whole;
  changed[whole.size() / 2] = static_cast<char>(changed[whole.size() / 2] ^ 0x55);
  for (const std::string& bytes :
       {std::string(), std::string("no stream"), whole.substr(0, whole.size() - 1),
        whole.substr(0, 20), whole + "x", whole + whole, changed,
        Deflated(Text(100), kZlibWindowBits)}) {
    std::string text;
    EXPECT_EQ(InflateWhole(bytes, 1'000'000, &text).code(), base::Code::kInternal)
        << bytes.size() << " bytes";
  }
}

}  // namespace
}  // namespace millpond::rpc
