#include "native/tensor/tensor_codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "native/base/clock.h"
#include "native/base/limits.h"
#include "native/base/share_scope.h"
#include "native/tensor/dtype.h"
#include "native/tf/tensor_storage.h"
#include "native/tf/typed_field.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/framework/variant.h"
#include "tests/native/tensorflow_runtime.h"
#include "tests/native/tensors.h"
#include "tests/native/wire_message.h"

namespace millpond::tensor {
namespace {

using base::Code;
using base::WireReader;
using base::WireTag;
using base::WireType;
using tensorflow::DataType;
using tensorflow::Tensor;
using tensorflow::TensorProto;
using testing::Decode;
using testing::Encode;
using testing::IsSame;
using testing::RuntimeMemory;
using testing::Scalar;
using testing::SegmentedBytes;
using testing::Vector;
using testing::WireMessage;
namespace field = tf::field;
using tf::FieldOf;
using tf::Layout;
using tf::TypedField;

// The dtypes that this codec reads itself.
std::vector<DataType> OwnDtypes() {
  std::vector<DataType> dtypes;
  for (int dtype = 1; dtype <= tensorflow::DataType_MAX; ++dtype) {
    if (!tensorflow::DataType_IsValid(dtype)) continue;
    if (FieldOf(static_cast<DataType>(dtype)).layout == Layout::kOther) continue;
    dtypes.push_back(static_cast<DataType>(dtype));
  }
  return dtypes;
}

std::vector<tensorflow::TensorShape> Shapes() {
  return {{}, {0}, {1}, {7}, {2, 3}, {4, 0, 2}, {1, 130}};
}

// Any bits, except for bools.
Tensor RandomTensor(DataType dtype, const tensorflow::TensorShape& shape, std::mt19937_64& rng) {
  Tensor tensor(dtype, shape);
  if (dtype == tensorflow::DT_STRING) {
    auto strings = tensor.flat<tensorflow::tstring>();
    for (int64_t i = 0; i < strings.size(); ++i) {
      strings(i) = std::string(i % 5 * 50, static_cast<char>(rng()));
    }
    return tensor;
  }
  auto* bytes = static_cast<unsigned char*>(tensor.data());
  for (size_t i = 0; i < tensor.TotalBytes(); ++i) {
    bytes[i] = static_cast<unsigned char>(dtype == tensorflow::DT_BOOL ? rng() % 2 : rng());
  }
  return tensor;
}

TensorProto FieldProto(const Tensor& tensor) {
  TensorProto proto;
  tensor.AsProtoField(&proto);
  return proto;
}
TensorProto ContentProto(const Tensor& tensor) {
  TensorProto proto;
  tensor.AsProtoTensorContent(&proto);
  return proto;
}

void ExpectDecodesTo(const std::string& bytes, const Tensor& expected, const std::string& what) {
  TensorList list;
  const base::Status decoded = Decode(bytes, expected.dtype(), &list);
  ASSERT_TRUE(decoded.ok()) << what << ": " << decoded.message();
  EXPECT_TRUE(IsSame(list.storage().tensors[0], expected))
      << what << ": " << list.storage().tensors[0].DebugString() << " for "
      << expected.DebugString();
}

// Runs `test` on a tensor of each dtype and shape.
void ForEachTensor(const std::function<void(const Tensor&, const std::string&)>& test) {
  std::mt19937_64 rng(11);
  for (const DataType dtype : OwnDtypes()) {
    for (const auto& shape : Shapes()) {
      test(RandomTensor(dtype, shape, rng), DtypeName(dtype) + shape.DebugString());
    }
  }
}

TEST(TensorCodec, HandlesEveryPlainDtypeAndStrings) {
  const std::vector<DataType> dtypes = OwnDtypes();
  EXPECT_GE(dtypes.size(), 25);
  for (const DataType dtype : {tensorflow::DT_HALF, tensorflow::DT_BFLOAT16, tensorflow::DT_QUINT16,
                               tensorflow::DT_FLOAT8_E4M3FN, tensorflow::DT_COMPLEX128}) {
    EXPECT_EQ(std::count(dtypes.begin(), dtypes.end(), dtype), 1) << DtypeName(dtype);
  }
}

TEST(DecodeTensor, ReadsTypedFieldsAsTensorFlowWritesThem) {
  ForEachTensor([](const Tensor& tensor, const std::string& what) {
    ExpectDecodesTo(FieldProto(tensor).SerializeAsString(), tensor, what);
  });
}

TEST(DecodeTensor, ReadsTensorContentAsTensorFlowWritesIt) {
  ForEachTensor([](const Tensor& tensor, const std::string& what) {
    ExpectDecodesTo(ContentProto(tensor).SerializeAsString(), tensor, what);
  });
}

// Appends the packed values of `body` one by one.
void AppendUnpacked(uint32_t field, Layout layout, WireReader body, WireMessage* message) {
  uint64_t varint = 0;
  uint32_t fixed32 = 0;
  uint64_t fixed64 = 0;
  while (!body.AtEnd()) {
    if (layout == Layout::kVarint) {
      ASSERT_TRUE(body.ReadVarint(&varint));
      message->Varint(field, varint);
    } else if (layout == Layout::kFixed32) {
      ASSERT_TRUE(body.ReadFixed32(&fixed32));
      message->Fixed32(field, fixed32);
    } else {
      ASSERT_TRUE(body.ReadFixed64(&fixed64));
      message->Fixed64(field, fixed64);
    }
  }
}

// The same message with its typed field unpacked.
std::string Unpack(const TensorProto& proto) {
  const TypedField typed = FieldOf(proto.dtype());
  const std::string bytes = proto.SerializeAsString();
  const SegmentedBytes segmented(bytes);
  WireReader reader = segmented.reader();
  WireMessage message;
  WireTag tag;
  while (!reader.AtEnd()) {
    WireReader body;
    uint64_t value = 0;
    EXPECT_TRUE(reader.ReadTag(&tag));
    if (tag.type == WireType::kVarint) {
      EXPECT_TRUE(reader.ReadVarint(&value));
      message.Varint(tag.field, value);
      continue;
    }
    EXPECT_TRUE(reader.ReadDelimited(&body));
    if (tag.field == typed.number) {
      AppendUnpacked(tag.field, typed.layout, body, &message);
    } else {
      std::string copy;
      body.AppendRest(&copy);
      message.Bytes(tag.field, copy);
    }
  }
  return message.bytes();
}

bool IsPackable(DataType dtype) {
  const Layout layout = FieldOf(dtype).layout;
  return layout == Layout::kVarint || layout == Layout::kFixed32 || layout == Layout::kFixed64;
}

TEST(DecodeTensor, ReadsTypedFieldsThatAreNotPacked) {
  ForEachTensor([](const Tensor& tensor, const std::string& what) {
    if (!IsPackable(tensor.dtype())) return;
    ExpectDecodesTo(Unpack(FieldProto(tensor)), tensor, what);
  });
}

TEST(DecodeTensor, ReadsATypedFieldInRunsAmongOtherFields) {
  TensorProto shape;
  shape.mutable_tensor_shape()->add_dim()->set_size(4);
  const std::string bytes =
      WireMessage()
          .Bytes(field::kInt64Val, WireMessage().RawVarint(1).RawVarint(2).bytes())
          .Varint(field::kInt64Val, 3)
          .Varint(field::kDtype, tensorflow::DT_INT64)
          .Raw(shape.SerializeAsString())
          .Bytes(field::kInt64Val, WireMessage().RawVarint(4).bytes())
          .bytes();
  ExpectDecodesTo(bytes, Vector<int64_t>({1, 2, 3, 4}), "runs");
}

// Removes the last value of the typed field; returns false if the field is empty.
bool RemoveLast(TensorProto* proto) {
  const auto* reflection = proto->GetReflection();
  const auto* typed =
      proto->GetDescriptor()->FindFieldByNumber(static_cast<int>(FieldOf(proto->dtype()).number));
  if (!typed->is_repeated()) {
    if (proto->float8_val().empty()) return false;
    proto->mutable_float8_val()->pop_back();
    return true;
  }
  const bool is_complex =
      proto->dtype() == tensorflow::DT_COMPLEX64 || proto->dtype() == tensorflow::DT_COMPLEX128;
  for (int part = 0; part < (is_complex ? 2 : 1); ++part) {
    if (reflection->FieldSize(*proto, typed) == 0) return false;
    reflection->RemoveLast(proto, typed);
  }
  return true;
}

TEST(DecodeTensor, FillsWithTheLastValueOrZerosLikeTensorFlow) {
  ForEachTensor([](const Tensor& tensor, const std::string& what) {
    TensorProto proto = FieldProto(tensor);
    for (int removed = 0; removed < 10 && RemoveLast(&proto); ++removed) {
      Tensor expected;
      ASSERT_TRUE(expected.FromProto(proto)) << what;
      ExpectDecodesTo(proto.SerializeAsString(), expected, what);
    }
  });
}

TEST(DecodeTensor, FillsALargeShapeWithOneValue) {
  TensorProto proto;
  proto.set_dtype(tensorflow::DT_DOUBLE);
  proto.mutable_tensor_shape()->add_dim()->set_size(100'000);
  proto.add_double_val(2.5);
  TensorList list;
  ASSERT_TRUE(Decode(proto, &list).ok());
  EXPECT_EQ(list.storage().tensors[0].flat<double>()(99'999), 2.5);
}

// A string tensor of `count` elements, all of them the one of `bytes`.
std::string FilledStrings(int64_t count, size_t bytes) {
  TensorProto proto;
  proto.set_dtype(tensorflow::DT_STRING);
  proto.mutable_tensor_shape()->add_dim()->set_size(count);
  proto.add_string_val(std::string(bytes, 's'));
  return proto.SerializeAsString();
}

base::Status DecodeStrings(const std::string& bytes) {
  tensor::TensorSpec any;
  any.dtype = tensorflow::DT_STRING;
  TensorList list;
  list.Reset(1);
  const std::string_view segment = bytes;
  return DecodeTensor(WireReader(&segment, 1), any, 0, &list);
}

TEST(DecodeTensor, StringsThatFillAShapeAreChargedBeforeTheyExist) {
  base::ByteBudget budget(int64_t{64} << 20U);
  base::ByteBudget::Share share(&budget);
  const base::ShareScope scope(&share);
  const int64_t before_bytes = RuntimeMemory().Statistics().in_use_bytes;
  const base::Status refused = DecodeStrings(FilledStrings(100'000, 10'000));
  EXPECT_EQ(refused.code(), Code::kResourceExhausted) << refused.message();
  EXPECT_LT(RuntimeMemory().Statistics().in_use_bytes - before_bytes, int64_t{1} << 20U);
  EXPECT_TRUE(DecodeStrings(FilledStrings(1'000, 10'000)).ok());
  EXPECT_GE(budget.in_use_bytes(), 1'000 * 10'000);
}

TEST(DecodeTensor, StringsOfMoreThanATensorMayTakeAreRefused) {
  const base::Status refused = DecodeStrings(FilledStrings(1'000'000, 10'000));
  EXPECT_EQ(refused.code(), Code::kResourceExhausted) << refused.message();
}

TEST(DecodeTensor, EndsAtTheDeadline) {
  base::ByteBudget::Share share;
  base::ReplyLimits limits;
  limits.deadline_ns = base::MonotonicNs() - 1'000'000'000;
  const base::ShareScope scope(&share, limits);
  EXPECT_EQ(DecodeStrings(FilledStrings(1'000'000, 10)).code(), Code::kDeadlineExceeded);
}

TEST(DecodeTensor, ReadsStringsWithNulsAndOfNoBytesInBothEncodings) {
  const Tensor strings = Vector<tensorflow::tstring>(
      {"", tensorflow::tstring(std::string("a\0b", 3)), "\xff\xfe", std::string(70'000, 'x')});
  ExpectDecodesTo(FieldProto(strings).SerializeAsString(), strings, "string_val");
  ExpectDecodesTo(ContentProto(strings).SerializeAsString(), strings, "tensor_content");
}

TEST(DecodeTensor, IntegersKeepTheirSignAndSize) {
  ExpectDecodesTo(FieldProto(Vector<int8_t>({-128, -1, 127})).SerializeAsString(),
                  Vector<int8_t>({-128, -1, 127}), "int8");
  ExpectDecodesTo(FieldProto(Vector<int32_t>({INT32_MIN, -1})).SerializeAsString(),
                  Vector<int32_t>({INT32_MIN, -1}), "int32");
  ExpectDecodesTo(FieldProto(Vector<uint32_t>({UINT32_MAX})).SerializeAsString(),
                  Vector<uint32_t>({UINT32_MAX}), "uint32");
  ExpectDecodesTo(FieldProto(Vector<uint64_t>({UINT64_MAX})).SerializeAsString(),
                  Vector<uint64_t>({UINT64_MAX}), "uint64");
}

TEST(DecodeTensor, BoolsAreZeroOrOneForAnyBytes) {
  TensorProto content;
  content.set_dtype(tensorflow::DT_BOOL);
  content.mutable_tensor_shape()->add_dim()->set_size(4);
  content.set_tensor_content(std::string("\0\x01\x02\xff", 4));
  ExpectDecodesTo(content.SerializeAsString(), Vector<bool>({false, true, true, true}), "content");
  const std::string varints =
      WireMessage()
          .Varint(field::kDtype, tensorflow::DT_BOOL)
          .Bytes(field::kTensorShape,
                 WireMessage().Bytes(field::kShapeDim, WireMessage().Varint(1, 2).bytes()).bytes())
          .Bytes(field::kBoolVal, WireMessage().RawVarint(0).RawVarint(uint64_t{1} << 40U).bytes())
          .bytes();
  ExpectDecodesTo(varints, Vector<bool>({false, true}), "bool_val");
}

TEST(DecodeTensor, LeavesDtypesOfPartsOfAByteAndVariantsToTensorFlow) {
  TensorProto int4;
  int4.set_dtype(tensorflow::DT_INT4);
  int4.mutable_tensor_shape()->add_dim()->set_size(3);
  for (const int value : {-8, 7, 1}) int4.add_int_val(value);
  Tensor expected;
  ASSERT_TRUE(expected.FromProto(int4));
  ExpectDecodesTo(int4.SerializeAsString(), expected, "int4");
  const Tensor variant = Scalar<tensorflow::Variant>(tensorflow::Variant(Vector<float>({1, 2})));
  ExpectDecodesTo(FieldProto(variant).SerializeAsString(), variant, "variant");
}

TEST(DecodeTensor, IgnoresUnknownFieldsDimNamesAndSpareContent) {
  TensorProto proto = ContentProto(Vector<float>({1, 2}));
  proto.mutable_tensor_shape()->mutable_dim(0)->set_name("batch");
  proto.set_version_number(3);
  proto.add_float_val(9);  // tensor_content wins, as with TensorFlow
  const std::string bytes = WireMessage()
                                .Raw(proto.SerializeAsString())
                                .Bytes(1'000, "new")
                                .Group(1'001, WireMessage().Varint(1, 1))
                                .bytes();
  ExpectDecodesTo(bytes, Vector<float>({1, 2}), "unknown fields");
}

TEST(DecodeTensor, OfAFieldThatComesTwiceTheLastCountsAndShapesAddUp) {
  TensorProto first = ContentProto(Vector<float>({1, 2}));
  TensorProto second;
  second.set_dtype(tensorflow::DT_INT32);
  second.mutable_tensor_shape()->add_dim()->set_size(1);
  second.set_tensor_content(std::string("\1\0\0\0\2\0\0\0", 8));
  Tensor expected;
  const std::string bytes = first.SerializeAsString() + second.SerializeAsString();
  TensorProto merged;
  ASSERT_TRUE(merged.ParseFromString(bytes) && expected.FromProto(merged));
  ExpectDecodesTo(bytes, expected, "merged");
}

// --- refused ---

struct RefusedTensor {
  const char* what;
  TensorProto proto;
  Code code;
  const char* in_message;
};

TensorProto Proto(DataType dtype, const std::vector<int64_t>& dims) {
  TensorProto proto;
  proto.set_dtype(dtype);
  proto.mutable_tensor_shape();
  for (const int64_t size : dims) proto.mutable_tensor_shape()->add_dim()->set_size(size);
  return proto;
}
TensorProto WithContent(TensorProto proto, const std::string& content) {
  proto.set_tensor_content(content);
  return proto;
}
TensorProto WithFloats(TensorProto proto, int count) {
  for (int i = 0; i < count; ++i) proto.add_float_val(1);
  return proto;
}
TensorProto WithStrings(TensorProto proto, int count) {
  for (int i = 0; i < count; ++i) proto.add_string_val("s");
  return proto;
}
TensorProto WithParts(TensorProto proto, int count) {
  for (int i = 0; i < count; ++i) proto.add_scomplex_val(1);
  return proto;
}
TensorProto OfUnknownRank() {
  TensorProto proto = Proto(tensorflow::DT_FLOAT, {});
  proto.mutable_tensor_shape()->set_unknown_rank(true);
  return proto;
}
TensorProto OfDtype(int dtype) {
  TensorProto proto;
  proto.set_dtype(static_cast<DataType>(dtype));
  return proto;
}

std::vector<RefusedTensor> RefusedTensors() {
  constexpr DataType kFloat = tensorflow::DT_FLOAT;
  constexpr DataType kString = tensorflow::DT_STRING;
  constexpr Code kInvalid = Code::kInvalidArgument;
  constexpr Code kExhausted = Code::kResourceExhausted;
  const int64_t big = int64_t{1} << 40U;
  return {
      {"no dtype", OfDtype(0), kInvalid, "dtype 0"},
      {"a dtype that does not exist", OfDtype(77), kInvalid, "dtype 77"},
      {"a negative dtype", OfDtype(-1), kInvalid, "dtype -1"},
      {"a reference", OfDtype(tensorflow::DT_FLOAT_REF), kInvalid, "dtype 101"},
      {"an unknown rank", OfUnknownRank(), kInvalid, "unknown_rank"},
      {"a size of -1", Proto(kFloat, {2, -1}), kInvalid, "size -1"},
      {"the least size", Proto(kFloat, {INT64_MIN}), kInvalid, "-9223372036854775808"},
      {"2^80 elements", Proto(kFloat, {big, big}), kInvalid, "2^63"},
      {"255 dimensions", Proto(kFloat, std::vector<int64_t>(255, 1)), kInvalid, "255 dimensions"},
      {"short content", WithContent(Proto(kFloat, {2}), "1234567"), kInvalid, "7 bytes"},
      {"long content", WithContent(Proto(kFloat, {1}), "12345678"), kInvalid, "8 bytes"},
      {"content for no elements", WithContent(Proto(kFloat, {0}), "1234"), kInvalid, "takes 0"},
      {"content for a gigabyte", WithContent(Proto(kFloat, {1 << 28}), "1234"), kInvalid,
       "4 bytes"},
      {"strings cut short", WithContent(Proto(kString, {2}), "\1"), kInvalid, "tensor_content"},
      {"strings too long", WithContent(Proto(kString, {2}), std::string("\0\0x", 3)), kInvalid,
       "tensor_content"},
      {"content for no strings", WithContent(Proto(kString, {0}), "x"), kInvalid, "tensor_content"},
      {"content for 50 million strings", WithContent(Proto(kString, {50'000'000}), "x"), kInvalid,
       "tensor_content"},
      {"too many floats", WithFloats(Proto(kFloat, {2}), 3), kInvalid, "3 values"},
      {"floats for no elements", WithFloats(Proto(kFloat, {0}), 1), kInvalid, "1 values"},
      {"too many strings", WithStrings(Proto(kString, {1}), 3), kInvalid, "3 values"},
      {"half a complex", WithParts(Proto(tensorflow::DT_COMPLEX64, {2}), 3), kInvalid, "odd"},
      {"2 GiB of floats", WithFloats(Proto(kFloat, {1 << 29}), 1), kExhausted, "2147483647"},
      {"2 GiB of zeros", Proto(kFloat, {1 << 29}), kExhausted, "smaller batches"},
      {"2^62 zeros", Proto(tensorflow::DT_DOUBLE, {1 << 31U, 1 << 31U}), kInvalid, "size"},
      {"2^60 zeros", Proto(tensorflow::DT_DOUBLE, {1 << 30, 1 << 30}), kExhausted, "2147483647"},
      {"empty strings of 2.4 GB", Proto(kString, {100'000'000}), kExhausted, "2147483647"},
      {"variants of 6 GB", Proto(tensorflow::DT_VARIANT, {100'000'000}), kExhausted, "2147483647"},
      {"resources of 8 GB", Proto(tensorflow::DT_RESOURCE, {100'000'000}), kExhausted,
       "2147483647"},
  };
}

TEST(DecodeTensor, RefusesContradictionsWithoutAllocating) {
  for (const RefusedTensor& row : RefusedTensors()) {
    TensorList list;
    RuntimeMemory().Forget();
    const base::Status refused = Decode(row.proto, &list);
    EXPECT_EQ(refused.code(), row.code) << row.what << ": " << refused.message();
    EXPECT_NE(refused.message().find(row.in_message), std::string::npos)
        << row.what << ": " << refused.message();
    EXPECT_LT(RuntimeMemory().largest_bytes(), 1'000) << row.what;
  }
}

TEST(DecodeTensor, RefusesTooManyUnpackedValuesAlike) {
  for (const DataType dtype : {tensorflow::DT_FLOAT, tensorflow::DT_DOUBLE, tensorflow::DT_INT64}) {
    TensorProto proto = Proto(dtype, {2});
    for (int i = 0; i < 5; ++i) {
      proto.add_float_val(1e30F);
      proto.add_double_val(1e300);
      proto.add_int64_val(-1);
    }
    TensorList list;
    const base::Status refused = Decode(Unpack(proto), dtype, &list);
    EXPECT_EQ(refused.code(), Code::kInvalidArgument);
    EXPECT_NE(refused.message().find("holds 5 values"), std::string::npos) << refused.message();
  }
}

TEST(DecodeTensor, RefusesAWrongDtypeOrShapeWithoutAllocating) {
  TensorSpec spec = testing::AnyShapeOf(tensorflow::DT_FLOAT);
  spec.is_rank_known = true;
  spec.has_checked_shape = true;
  spec.dims = {TensorSpec::kUnknownSize, 3};
  const TensorProto wrong[] = {
      Proto(tensorflow::DT_DOUBLE, {1'000, 3}), Proto(tensorflow::DT_FLOAT, {1'000, 4}),
      Proto(tensorflow::DT_FLOAT, {3'000}), Proto(tensorflow::DT_FLOAT, {})};
  const char* got[] = {"got float64[1000,3]", "got float32[1000,4]", "got float32[3000]",
                       "got float32[]"};
  for (int i = 0; i < 4; ++i) {
    const SegmentedBytes segmented(wrong[i].SerializeAsString());
    TensorList list;
    list.Reset(1);
    RuntimeMemory().Forget();
    const base::Status refused = DecodeTensor(segmented.reader(), spec, 0, &list);
    EXPECT_EQ(refused.code(), Code::kInvalidArgument);
    EXPECT_EQ(refused.message(), std::string("expected float32[?,3], ") + got[i]);
    EXPECT_LT(RuntimeMemory().largest_bytes(), 1'000);
  }
}

TEST(DecodeTensor, RefusesAMessageCutShortWithinAFieldAtAnyByte) {
  for (const DataType dtype : OwnDtypes()) {
    std::mt19937_64 rng(3);
    const std::string bytes = FieldProto(RandomTensor(dtype, {3}, rng)).SerializeAsString();
    for (size_t size = 0; size < bytes.size(); ++size) {
      const std::string cut = bytes.substr(0, size);
      TensorList list;
      TensorProto proto;
      // A cut between two fields also gives a message, with fewer fields.
      EXPECT_EQ(Decode(cut, dtype, &list).ok(), proto.ParseFromString(cut) && proto.dtype() != 0)
          << DtypeName(dtype) << " at " << size;
    }
  }
}

// --- encoding ---

TEST(EncodeTensor, WritesTypedFieldsByteForByteAsTensorFlowDoes) {
  ForEachTensor([](const Tensor& tensor, const std::string& what) {
    EXPECT_EQ(Encode(tensor, TensorEncoding::kTypedFields), FieldProto(tensor).SerializeAsString())
        << what;
  });
}

TEST(EncodeTensor, WritesTensorContentAsTensorFlowButForStrings) {
  ForEachTensor([](const Tensor& tensor, const std::string& what) {
    const bool is_string = tensor.dtype() == tensorflow::DT_STRING;
    EXPECT_EQ(Encode(tensor, TensorEncoding::kTensorContent),
              (is_string ? FieldProto(tensor) : ContentProto(tensor)).SerializeAsString())
        << what;
  });
}

TEST(EncodeTensor, EncodedTensorsDecodeToTheSameTensor) {
  ForEachTensor([](const Tensor& tensor, const std::string& what) {
    for (const auto encoding : {TensorEncoding::kTypedFields, TensorEncoding::kTensorContent}) {
      ExpectDecodesTo(Encode(tensor, encoding), tensor, what);
    }
  });
}

TEST(EncodeTensor, LeavesVariantsToTensorFlow) {
  const Tensor variant = Scalar<tensorflow::Variant>(tensorflow::Variant(Vector<float>({1, 2})));
  EXPECT_EQ(Encode(variant, TensorEncoding::kTensorContent),
            FieldProto(variant).SerializeAsString());
}

TEST(EncodeTensor, WritesATensorThatWasNeverSetAsAnEmptyOne) {
  TensorList list;
  list.Reset(1);
  TensorProto proto;
  Tensor tensor;
  ASSERT_TRUE(proto.ParseFromString(Encode(list, 0, TensorEncoding::kTypedFields)));
  ASSERT_TRUE(tensor.FromProto(proto));
  EXPECT_EQ(tensor.NumElements(), 0);
}

}  // namespace
}  // namespace millpond::tensor
