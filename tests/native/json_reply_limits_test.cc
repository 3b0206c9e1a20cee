#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>

#include "native/base/byte_budget.h"
#include "native/base/clock.h"
#include "native/rest/content_coding.h"
#include "native/rest/json_tensor_writer.h"
#include "native/rest/json_writer.h"
#include "native/tensor/dtype.h"
#include "tests/native/opaque_tensors.h"

// Replies with texts far longer than their tensors, and clients that do not wait.
namespace millpond::rest {
namespace {

using base::Code;

tensor::Signature OneOutput(int dtype) {
  tensor::TensorSpec output;
  output.name = "y";
  output.dtype = dtype;
  tensor::Signature signature;
  signature.outputs = {output};
  return signature;
}

base::StatusOr<base::ReplyBytes> Write(const std::vector<int64_t>& dims,
                                       const base::ReplyLimits& limits,
                                       BodyFormat format = BodyFormat::kColumnar) {
  tensor::TensorList list;
  list.Reset(1);
  list.storage().tensors[0].dtype = tensor::dtype::kFloat;
  list.storage().tensors[0].dims = dims;
  const bool is_empty = std::count(dims.begin(), dims.end(), 0) > 0;
  // The sizes beside a 0 may have a product beyond int64.
  size_t count = is_empty ? 0 : 1;
  for (const int64_t size : dims) count *= static_cast<size_t>(size);
  list.storage().tensors[0].bytes.assign(count * 4, '\0');
  return WritePredictReply(OneOutput(tensor::dtype::kFloat), format, list, limits);
}

TEST(JsonReplyLimits, EmptyRowsWithoutNumberAreRefusedAtOnce) {
  for (const BodyFormat format : {BodyFormat::kColumnar, BodyFormat::kRow}) {
    for (const std::vector<int64_t>& dims : {std::vector<int64_t>{int64_t{1} << 40U, 0},
                                             {INT64_MAX / 2, 0},
                                             {int64_t{1} << 31U, int64_t{1} << 31U, 0},
                                             {7, int64_t{1} << 62U, 0}}) {
      base::ByteBudget budget;
      base::ReplyLimits limits;
      limits.budget = &budget;
      const auto refused = Write(dims, limits, format);
      EXPECT_EQ(refused.status().code(), Code::kResourceExhausted);
      EXPECT_NE(refused.status().message().find("--max_reply_bytes"), std::string::npos);
      EXPECT_EQ(budget.in_use_bytes(), 0);
    }
  }
}

TEST(JsonReplyLimits, EmptyRowsInNumbersThatFitAreAnswered) {
  EXPECT_EQ(Write({3, 0}, {}).value().view(), R"({"outputs": [[], [], []]})");
  EXPECT_EQ(Write({0, int64_t{1} << 40U}, {}).value().view(), R"({"outputs": []})");
  EXPECT_EQ(Write({0, 5}, {}, BodyFormat::kRow).value().view(), R"({"predictions": []})");
  EXPECT_EQ(Write({}, {}).value().view(), R"({"outputs": 0.0})");
}

TEST(JsonReplyLimits, TextOfTheLimitIsSentAndOneByteMoreIsNot) {
  const std::string text(Write({40, 3}, {}).value().view());
  base::ReplyLimits limits;
  limits.bytes_max = text.size();
  EXPECT_EQ(Write({40, 3}, limits).value().view(), text);
  limits.bytes_max = text.size() - 1;
  EXPECT_EQ(Write({40, 3}, limits).status().code(), Code::kResourceExhausted);
}

TEST(JsonReplyLimits, AReplyEndsAtItsDeadline) {
  base::ReplyLimits limits;
  limits.bytes_max = SIZE_MAX;
  limits.deadline_ns = base::MonotonicNs() + 20'000'000;
  EXPECT_EQ(Write({int64_t{1} << 40U, 0}, limits).status().code(), Code::kDeadlineExceeded);
  EXPECT_EQ(Write({int64_t{1} << 40U, 0}, limits, BodyFormat::kRow).status().code(),
            Code::kDeadlineExceeded);
}

TEST(JsonReplyLimits, AReplyEndsWhenItsClientIsGone) {
  const std::atomic<bool> is_cancelled{true};
  base::ReplyLimits limits;
  limits.is_cancelled = &is_cancelled;
  EXPECT_EQ(Write({1'000'000, 1}, limits).status().code(), Code::kCancelled);
}

TEST(JsonReplyLimits, NumbersAndRowsStopAtTheBudget) {
  base::ByteBudget budget(100'000);
  base::ReplyLimits limits;
  limits.budget = &budget;
  EXPECT_EQ(Write({1'000'000}, limits).status().code(), Code::kResourceExhausted);
  EXPECT_EQ(Write({1'000'000, 1}, limits, BodyFormat::kRow).status().code(),
            Code::kResourceExhausted);
  EXPECT_EQ(budget.in_use_bytes(), 0);
}

TEST(JsonReplyLimits, LongStringsAndBytesAreBounded) {
  const std::string text(300'000, '"');
  base::ReplyLimits limits;
  limits.bytes_max = 100'000;
  JsonWriter quoted(limits);
  quoted.String(text);
  EXPECT_EQ(quoted.Take().status().code(), Code::kResourceExhausted);
  JsonWriter coded(limits);
  coded.Base64(text);
  EXPECT_EQ(coded.Take().status().code(), Code::kResourceExhausted);
}

TEST(JsonReplyLimits, LongBytesAreOneBase64) {
  JsonWriter json({});
  json.Base64(std::string(10'000, '\0'));
  const std::string text(json.Take().value().view());
  // 10,000 is 3,333 groups of three and one byte more.
  EXPECT_EQ(text, "{\"b64\": \"" + std::string(4 * 3'333, 'A') + "AA==\"}");
}

TEST(JsonReplyLimits, GzipEndsWithItsClientAndCountsItsMemory) {
  const std::string body(5'000'000, 'x');
  const std::atomic<bool> is_cancelled{true};
  base::ReplyLimits limits;
  limits.is_cancelled = &is_cancelled;
  EXPECT_EQ(Gzip(body, limits).status().code(), Code::kCancelled);
  limits.is_cancelled = nullptr;
  limits.bytes_max = 100;
  EXPECT_EQ(Gzip(body, limits).status().code(), Code::kResourceExhausted);
}

}  // namespace
}  // namespace millpond::rest
