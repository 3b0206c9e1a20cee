#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "native/rest/json_tensor_writer.h"
#include "native/rest/predict_body.h"
#include "native/tensor/small_float.h"
#include "native/tensor/tensor_access.h"
#include "tests/native/plain_servable.h"
#include "tests/native/wire_message.h"

namespace millpond::rest {
namespace {

using testing::PlainServable;
namespace dtype = tensor::dtype;

using Signatures = std::vector<tensor::Signature>;

constexpr int kAllDtypes[] = {dtype::kFloat,  dtype::kDouble, dtype::kInt32,    dtype::kUint8,
                              dtype::kInt16,  dtype::kInt8,   dtype::kString,   dtype::kInt64,
                              dtype::kBool,   dtype::kHalf,   dtype::kBfloat16, dtype::kUint16,
                              dtype::kUint32, dtype::kUint64};

tensor::Signature EchoSignature(int dtype) {
  tensor::Signature signature;
  signature.name = "serving_default";
  signature.inputs = {testing::AnyShapeSpec("x", dtype)};
  signature.outputs = signature.inputs;
  return signature;
}

// A NaN has many bit patterns in memory, and one in JSON.
void NormalizeNaN(int dtype, std::string* bytes) {
  const auto fix = [&](auto zero, auto is_nan, auto nan) {
    for (size_t i = 0; i < bytes->size(); i += sizeof zero) {
      std::memcpy(&zero, bytes->data() + i, sizeof zero);
      if (is_nan(zero)) std::memcpy(bytes->data() + i, &nan, sizeof nan);
    }
  };
  const auto is_small_nan = [](auto to_float) {
    return [to_float](uint16_t bits) { return std::isnan(to_float(bits)); };
  };
  if (dtype == dtype::kFloat)
    fix(
        0.0F, [](float v) { return std::isnan(v); }, std::nanf(""));
  if (dtype == dtype::kDouble)
    fix(
        0.0, [](double v) { return std::isnan(v); }, std::nan(""));
  if (dtype == dtype::kHalf)
    fix(uint16_t{0}, is_small_nan(tensor::Half::ToFloat), uint16_t{0x7e00});
  if (dtype == dtype::kBfloat16)
    fix(uint16_t{0}, is_small_nan(tensor::Bfloat16::ToFloat), uint16_t{0x7fc0});
}

testing::OpaqueTensor RandomTensor(int dtype, std::vector<int64_t> dims, std::mt19937_64& rng) {
  tensor::TensorList list;
  list.Reset(1);
  EXPECT_TRUE(tensor::MakeTensor(dtype, dims, 0, &list).ok());
  testing::OpaqueTensor tensor = list.storage().tensors[0];
  for (char& byte : tensor.bytes) {
    byte = static_cast<char>(dtype == dtype::kBool ? rng() & 1 : rng());
  }
  for (std::string& text : tensor.strings) {
    for (uint64_t left = rng() % 12; left > 0; --left) text += static_cast<char>(rng());
  }
  NormalizeNaN(dtype, &tensor.bytes);
  return tensor;
}

testing::OpaqueTensor ThroughJson(const testing::OpaqueTensor& tensor, BodyFormat format) {
  const PlainServable servable({EchoSignature(tensor.dtype)});
  tensor::TensorList list;
  list.Reset(1);
  list.storage().tensors[0] = tensor;
  const tensor::Signature signature = EchoSignature(tensor.dtype);
  const auto written = WritePredictReply(signature, format, list, {});
  EXPECT_TRUE(written.ok()) << written.status().message();
  const std::string reply(written.value().view());
  // Makes {"instances": ...} of a request from {"predictions": ...} of a reply.
  const std::string key = format == BodyFormat::kRow ? "instances" : "inputs";
  const std::string body = "{\"" + key + "\"" + reply.substr(reply.find(':'));
  PredictBody read;
  const base::Status status = ReadPredictBody(servable, body, &read);
  EXPECT_TRUE(status.ok()) << status.message() << " " << body;
  return status.ok() ? read.inputs.storage().tensors[0] : testing::OpaqueTensor();
}

void ExpectSame(const testing::OpaqueTensor& a, const testing::OpaqueTensor& b) {
  EXPECT_EQ(a.dims, b.dims);
  EXPECT_TRUE(a.bytes == b.bytes);
  EXPECT_EQ(a.strings, b.strings);
}

TEST(RestRoundTrip, EveryDtypeSurvivesTheRoundTrip) {
  std::mt19937_64 rng(2'026);
  for (const int dtype : kAllDtypes) {
    SCOPED_TRACE(dtype);
    for (const std::vector<int64_t>& dims :
         {std::vector<int64_t>{}, {1}, {1'000}, {3, 1, 2}, {100, 39}, {1, 1, 1, 1, 2}}) {
      const testing::OpaqueTensor tensor = RandomTensor(dtype, dims, rng);
      ExpectSame(ThroughJson(tensor, BodyFormat::kColumnar), tensor);
      if (!dims.empty()) ExpectSame(ThroughJson(tensor, BodyFormat::kRow), tensor);
    }
  }
}

TEST(RestRoundTrip, EveryDtypeReadsBackItsLimits) {
  const auto expect = [](int dtype, auto least, auto most) {
    const std::vector<decltype(least)> values{least, most, 0};
    const testing::OpaqueTensor tensor = testing::NumberTensor(dtype, {3}, values);
    ExpectSame(ThroughJson(tensor, BodyFormat::kRow), tensor);
  };
  expect(dtype::kInt64, INT64_MIN, INT64_MAX);
  expect(dtype::kUint64, uint64_t{0}, UINT64_MAX);
  expect(dtype::kInt8, int8_t{INT8_MIN}, int8_t{INT8_MAX});
  expect(dtype::kFloat, std::numeric_limits<float>::denorm_min(),
         std::numeric_limits<float>::max());
  expect(dtype::kDouble, std::numeric_limits<double>::denorm_min(),
         -std::numeric_limits<double>::max());
}

}  // namespace
}  // namespace millpond::rest
