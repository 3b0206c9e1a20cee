#include <algorithm>
#include <complex>
#include <string>
#include <type_traits>
#include <utility>

#include "native/base/limits.h"
#include "native/base/share_scope.h"
#include "native/tensor/dtype.h"
#include "native/tensor/tensor_codec.h"
#include "native/tf/tensor_allocation.h"
#include "native/tf/tensor_storage.h"
#include "native/tf/typed_field.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/coding.h"

namespace millpond::tensor {
namespace {

using base::Status;
using base::WireReader;
using base::WireTag;
using base::WireType;
using tensorflow::DataType;
using tensorflow::Tensor;
namespace field = tf::field;
using tf::AllocateTensor;
using tf::BufferBytesPerElement;
using tf::CheckTensorBytes;
using tf::CopyContent;
using tf::CountElements;
using tf::FieldOf;
using tf::Layout;
using tf::TypedField;

// The result of the first pass over a TensorProto. Its readers point into the message. Nothing of
// the tensor's size is allocated before dtype, shape and content agree.
struct ScannedTensor {
  int dtype = 0;
  std::vector<int64_t> dims;  // at most one more than TensorFlow takes
  size_t dim_count = 0;
  bool is_rank_known = true;
  WireReader content;
  WireReader whole;
};

bool ScanDim(WireReader dim, int64_t* size) {
  *size = 0;
  WireTag tag;
  uint64_t value = 0;
  std::string name;
  while (!dim.AtEnd()) {
    if (!dim.ReadTag(&tag)) return false;
    if (tag.field == field::kDimSize && tag.type == WireType::kVarint) {
      if (!dim.ReadVarint(&value)) return false;
      *size = static_cast<int64_t>(value);
    } else if (tag.field == field::kDimName && tag.type == WireType::kLengthDelimited) {
      if (!dim.ReadString(&name)) return false;
    } else if (!dim.SkipField(tag)) {
      return false;
    }
  }
  return true;
}

bool ScanShape(WireReader shape, ScannedTensor* scanned) {
  WireTag tag;
  while (!shape.AtEnd()) {
    if (!shape.ReadTag(&tag)) return false;
    if (tag.field == field::kShapeDim && tag.type == WireType::kLengthDelimited) {
      WireReader dim;
      int64_t size = 0;
      if (!shape.ReadDelimited(&dim) || !ScanDim(dim, &size)) return false;
      // Further dimensions are only counted, because two bytes on the wire must not become eight
      // bytes of memory.
      ++scanned->dim_count;
      if (scanned->dims.size() <= base::kMaxTensorRank) scanned->dims.push_back(size);
    } else if (tag.field == field::kShapeUnknownRank && tag.type == WireType::kVarint) {
      uint64_t value = 0;
      if (!shape.ReadVarint(&value)) return false;
      scanned->is_rank_known = value == 0;
    } else if (!shape.SkipField(tag)) {
      return false;
    }
  }
  return true;
}

// Scans the message. Returns false if it does not parse. Typed fields are read later, once the
// dtype selects one of them.
bool Scan(WireReader proto, ScannedTensor* scanned) {
  scanned->whole = proto;
  WireTag tag;
  while (!proto.AtEnd()) {
    if (!proto.ReadTag(&tag)) return false;
    WireReader shape;
    uint64_t value = 0;
    if (tag.field == field::kDtype && tag.type == WireType::kVarint) {
      if (!proto.ReadVarint(&value)) return false;
      scanned->dtype = static_cast<int32_t>(value);
    } else if (tag.field == field::kTensorShape && tag.type == WireType::kLengthDelimited) {
      if (!proto.ReadDelimited(&shape) || !ScanShape(shape, scanned)) return false;
    } else if (tag.field == field::kTensorContent && tag.type == WireType::kLengthDelimited) {
      if (!proto.ReadDelimited(&scanned->content)) return false;
    } else if (!proto.SkipField(tag)) {
      return false;
    }
  }
  return true;
}

std::string Describe(const ScannedTensor& scanned) {
  return DescribeTensor(scanned.dtype, true, scanned.dims);
}

// Returns the number of elements. Checks each size and the product.
base::StatusOr<int64_t> ElementCount(const ScannedTensor& scanned) {
  if (!scanned.is_rank_known) {
    return base::InvalidArgument("tensor_shape has unknown_rank; send the sizes of all dimensions");
  }
  // dims has only one dimension too many, so the message takes the full count.
  if (scanned.dim_count > base::kMaxTensorRank) {
    return base::InvalidArgument("tensor_shape has " + std::to_string(scanned.dim_count) +
                                 " dimensions; TensorFlow takes at most " +
                                 std::to_string(base::kMaxTensorRank));
  }
  return CountElements(scanned.dtype, scanned.dims);
}

Status ContentContradiction(const ScannedTensor& scanned, size_t got_bytes, int64_t want_bytes) {
  return base::InvalidArgument("tensor_content holds " + std::to_string(got_bytes) + " bytes, " +
                               Describe(scanned) + " takes " + std::to_string(want_bytes));
}

Status NoStringList(const ScannedTensor& scanned) {
  return base::InvalidArgument("tensor_content is not the encoding of " + Describe(scanned) +
                               ": varint lengths, then the strings");
}

// Refuses a length that contradicts the shape, before memory for the shape is allocated.
Status CheckContentBytes(const ScannedTensor& scanned, int64_t element_count) {
  const auto got_bytes = static_cast<int64_t>(scanned.content.remaining_bytes());
  if (scanned.dtype == tensorflow::DT_STRING) {
    // Each string takes at least one byte, for its length.
    return got_bytes < element_count ? NoStringList(scanned) : Status();
  }
  const int64_t want_bytes =
      element_count * BufferBytesPerElement(static_cast<DataType>(scanned.dtype));
  return got_bytes == want_bytes ? Status() : ContentContradiction(scanned, got_bytes, want_bytes);
}

// The content is copied twice: into one piece, and from there into the strings.
Status DecodeStringContent(const ScannedTensor& scanned, Tensor* tensor) {
  MILLPOND_RETURN_IF_ERROR(
      tf::ChargeContent(2 * static_cast<int64_t>(scanned.content.remaining_bytes()), *tensor));
  std::string content;
  WireReader reader = scanned.content;
  reader.AppendRest(&content);
  auto strings = tensor->flat<tensorflow::tstring>();
  if (tensorflow::port::DecodeStringList(content, strings.data(), strings.size())) return {};
  return NoStringList(scanned);
}

// Sets each byte of a bool tensor to 0 or 1. Other values must not reach a kernel.
void NormalizeBools(Tensor* tensor) {
  auto* bytes = static_cast<unsigned char*>(tensor->data());
  for (int64_t i = 0; i < tensor->NumElements(); ++i) bytes[i] = bytes[i] != 0 ? 1 : 0;
}

Status DecodeContent(const ScannedTensor& scanned, Tensor* tensor) {
  if (tensor->dtype() == tensorflow::DT_STRING) return DecodeStringContent(scanned, tensor);
  const auto want_bytes = static_cast<int64_t>(tensor->TotalBytes());
  WireReader content = scanned.content;
  const size_t got_bytes = content.remaining_bytes();
  if (static_cast<int64_t>(got_bytes) != want_bytes) {
    return ContentContradiction(scanned, got_bytes, want_bytes);
  }
  MILLPOND_RETURN_IF_ERROR(CopyContent(&content, got_bytes, static_cast<char*>(tensor->data())));
  if (tensor->dtype() == tensorflow::DT_BOOL) NormalizeBools(tensor);
  return {};
}

// Takes the values of one typed field in order, and writes them to `out`, which has room for
// `capacity` values. The first failure is final: Fill returns it.
template <typename T>
class ValueSink {
 public:
  ValueSink(T* out, int64_t capacity) : out_(out), capacity_(capacity) {}

  int64_t count() const { return count_; }
  bool IsOverfull() const { return count_ > capacity_; }
  const Status& status() const { return status_; }

  // False if the value is the last one, because the sink has failed.
  bool Put(T value) {
    if (!look_.Count()) return Fail(look_.status());
    if (count_ < capacity_) out_[count_] = std::move(value);
    ++count_;
    return true;
  }
  // Takes `count` values that have the same layout in memory as on the wire.
  bool PutAll(WireReader* from, int64_t count) {
    const int64_t taken = std::min(count, std::max<int64_t>(0, capacity_ - count_));
    const Status copied = CopyContent(from, static_cast<size_t>(taken) * sizeof(T),
                                      reinterpret_cast<char*>(out_ + std::min(count_, capacity_)));
    if (!copied.ok()) return Fail(copied);
    count_ += count;
    return true;
  }
  // Fills the remaining elements with the last value, by TensorFlow's rule; with zero if there are
  // no values. All of their memory is charged before the first is written.
  Status Fill() {
    if (!status_.ok() || count_ >= capacity_) return status_;
    const T last = count_ > 0 ? out_[count_ - 1] : T();
    if constexpr (std::is_same_v<T, tensorflow::tstring>) {
      if (!ChargeStrings(capacity_ - count_, last.size())) return status_;
    }
    while (count_ < capacity_) {
      const int64_t part = std::min(capacity_ - count_, base::DecodeLook::kLookSteps);
      if (!look_.Count(part)) return look_.status();
      std::fill(out_ + count_, out_ + count_ + part, last);
      count_ += part;
    }
    return {};
  }
  // Charges the memory of `count` strings of `size` bytes. False if they must not be made.
  bool ChargeStrings(int64_t count, size_t size) {
    status_ = tf::ChargeStrings(count, size);
    return status_.ok();
  }

 private:
  bool Fail(const Status& status) {
    status_ = status;
    return false;
  }

  T* out_;
  int64_t capacity_;
  int64_t count_ = 0;
  base::DecodeLook look_;
  Status status_;
};

// Reads one value of a fixed-width field, or a packed run of values.
template <typename T>
bool ReadFixedValues(WireReader* proto, WireTag tag, ValueSink<T>* sink) {
  constexpr WireType kSingle = sizeof(T) == 4 ? WireType::kFixed32 : WireType::kFixed64;
  if (tag.type == kSingle) {
    T value{};
    return proto->Copy(&value, sizeof value) && sink->Put(value);
  }
  if (tag.type != WireType::kLengthDelimited) return proto->SkipField(tag);
  WireReader packed;
  if (!proto->ReadDelimited(&packed) || packed.remaining_bytes() % sizeof(T) != 0) return false;
  return sink->PutAll(&packed, static_cast<int64_t>(packed.remaining_bytes() / sizeof(T)));
}

// Reads one value of a varint field, or a packed run of values. `convert` turns the varint into an
// element.
template <typename T, typename Convert>
bool ReadVarintValues(WireReader* proto, WireTag tag, Convert convert, ValueSink<T>* sink) {
  uint64_t value = 0;
  if (tag.type == WireType::kVarint) {
    return proto->ReadVarint(&value) && sink->Put(convert(value));
  }
  if (tag.type != WireType::kLengthDelimited) return proto->SkipField(tag);
  WireReader packed;
  if (!proto->ReadDelimited(&packed)) return false;
  while (!packed.AtEnd()) {
    if (!packed.ReadVarint(&value) || !sink->Put(convert(value))) return false;
  }
  return true;
}

bool ReadByteValues(WireReader* proto, WireTag tag, ValueSink<uint8_t>* sink) {
  if (tag.type != WireType::kLengthDelimited) return proto->SkipField(tag);
  WireReader bytes;
  if (!proto->ReadDelimited(&bytes)) return false;
  return sink->PutAll(&bytes, static_cast<int64_t>(bytes.remaining_bytes()));
}

bool ReadStringValue(WireReader* proto, WireTag tag, ValueSink<tensorflow::tstring>* sink) {
  if (tag.type != WireType::kLengthDelimited) return proto->SkipField(tag);
  WireReader bytes;
  if (!proto->ReadDelimited(&bytes)) return false;
  tensorflow::tstring value;
  const size_t size = bytes.remaining_bytes();
  if (!sink->ChargeStrings(1, size)) return false;
  value.resize_uninitialized(size);
  return bytes.Copy(value.mdata(), size) && sink->Put(std::move(value));
}

// Runs `read` for each occurrence of the typed field, and fills the remaining elements.
template <typename T, typename Read>
Status DecodeField(const ScannedTensor& scanned, uint32_t number, T* out, int64_t capacity,
                   Read read) {
  ValueSink<T> sink(out, capacity);
  WireReader proto = scanned.whole;
  WireTag tag;
  while (!proto.AtEnd()) {
    const bool parses = proto.ReadTag(&tag) &&
                        (tag.field == number ? read(&proto, tag, &sink) : proto.SkipField(tag));
    if (!sink.status().ok()) return sink.status();
    if (!parses) return base::InvalidArgument("its bytes are not a TensorProto");
  }
  if (sink.IsOverfull()) {
    return base::InvalidArgument("holds " + std::to_string(sink.count()) + " values, " +
                                 Describe(scanned) + " takes " + std::to_string(capacity));
  }
  return sink.Fill();
}

// Decodes a fixed-width field. `per_element` is 2 for complex numbers, whose parts are separate
// values on the wire.
template <typename T>
Status DecodeFixedField(const ScannedTensor& scanned, uint32_t number, int per_element,
                        Tensor* tensor) {
  const int64_t capacity = tensor->NumElements() * per_element;
  auto* out = static_cast<T*>(tensor->data());
  if (per_element == 1) {
    return DecodeField(scanned, number, out, capacity, ReadFixedValues<T>);
  }
  // Fills here, because the last element of a complex tensor is a pair of values.
  int64_t count = 0;
  const Status status =
      DecodeField(scanned, number, out, capacity, [&](auto* proto, WireTag tag, auto* sink) {
        const bool parses = ReadFixedValues<T>(proto, tag, sink);
        count = sink->count();
        return parses;
      });
  if (!status.ok()) return status;
  if (count % 2 != 0)
    return base::InvalidArgument("holds an odd number of parts of complex values");
  auto* pairs = static_cast<std::complex<T>*>(tensor->data());
  const std::complex<T> last = count > 0 ? pairs[count / 2 - 1] : std::complex<T>();
  std::fill(pairs + count / 2, pairs + tensor->NumElements(), last);
  return {};
}

template <typename T>
Status DecodeVarintField(const ScannedTensor& scanned, uint32_t number, Tensor* tensor) {
  return DecodeField(scanned, number, static_cast<T*>(tensor->data()), tensor->NumElements(),
                     [](WireReader* proto, WireTag tag, ValueSink<T>* sink) {
                       return ReadVarintValues(
                           proto, tag, [](uint64_t value) { return static_cast<T>(value); }, sink);
                     });
}

Status DecodeBoolField(const ScannedTensor& scanned, uint32_t number, Tensor* tensor) {
  return DecodeField(scanned, number, static_cast<bool*>(tensor->data()), tensor->NumElements(),
                     [](WireReader* proto, WireTag tag, ValueSink<bool>* sink) {
                       return ReadVarintValues(
                           proto, tag, [](uint64_t value) { return value != 0; }, sink);
                     });
}

// Decodes the varint-coded dtypes by the width of their elements. A conversion from uint64 keeps
// the low bits, which is right for signed, unsigned and half types alike.
Status DecodeVarintFieldByWidth(const ScannedTensor& scanned, uint32_t number, Tensor* tensor) {
  if (tensor->dtype() == tensorflow::DT_BOOL) return DecodeBoolField(scanned, number, tensor);
  switch (tensorflow::DataTypeSize(tensor->dtype())) {
    case 1:
      return DecodeVarintField<uint8_t>(scanned, number, tensor);
    case 2:
      return DecodeVarintField<uint16_t>(scanned, number, tensor);
    case 4:
      return DecodeVarintField<uint32_t>(scanned, number, tensor);
    default:
      return DecodeVarintField<uint64_t>(scanned, number, tensor);
  }
}

Status DecodeTypedField(const ScannedTensor& scanned, TypedField typed, Tensor* tensor) {
  const bool is_complex =
      tensor->dtype() == tensorflow::DT_COMPLEX64 || tensor->dtype() == tensorflow::DT_COMPLEX128;
  switch (typed.layout) {
    case Layout::kFixed32:
      return DecodeFixedField<float>(scanned, typed.number, is_complex ? 2 : 1, tensor);
    case Layout::kFixed64:
      return DecodeFixedField<double>(scanned, typed.number, is_complex ? 2 : 1, tensor);
    case Layout::kVarint:
      return DecodeVarintFieldByWidth(scanned, typed.number, tensor);
    case Layout::kBytesPerElement:
      return DecodeField(scanned, typed.number, tensor->flat<tensorflow::tstring>().data(),
                         tensor->NumElements(), ReadStringValue);
    case Layout::kPackedBytes:
      return DecodeField(scanned, typed.number, static_cast<uint8_t*>(tensor->data()),
                         tensor->NumElements(), ReadByteValues);
    case Layout::kOther:
      break;
  }
  return base::Internal("no typed field for " + DtypeName(tensor->dtype()));
}

// The times that a message's bytes are in memory while TensorFlow decodes it: a copy in one piece,
// the parsed message, whose objects are larger than their bytes, and the tensor's objects.
constexpr int64_t kTensorFlowCopies = 8;

// Decodes variants and resource handles with TensorFlow, because they hold messages of their own.
// They are rare, and small enough for TensorFlow's copies.
Status DecodeWithTensorFlow(const ScannedTensor& scanned, int64_t element_count, Tensor* tensor) {
  const int64_t charged_bytes =
      kTensorFlowCopies * static_cast<int64_t>(scanned.whole.remaining_bytes()) +
      element_count * BufferBytesPerElement(static_cast<DataType>(scanned.dtype));
  if (!base::ShareScope::Add(charged_bytes))
    return base::ShareScope::NoMemoryFor(Describe(scanned));
  std::string bytes;
  WireReader reader = scanned.whole;
  reader.AppendRest(&bytes);
  tensorflow::TensorProto proto;
  if (!proto.ParseFromString(bytes) || !tensor->FromProto(tensorflow::cpu_allocator(), proto)) {
    return base::InvalidArgument("its bytes are not a TensorProto of " + Describe(scanned));
  }
  return {};
}

}  // namespace

Status DecodeTensor(WireReader proto, const TensorSpec& spec, size_t index, TensorList* tensors) {
  ScannedTensor scanned;
  if (!Scan(proto, &scanned)) return base::InvalidArgument("its bytes are not a TensorProto");
  if (scanned.dtype <= 0 || !tensorflow::DataType_IsValid(scanned.dtype) ||
      tensorflow::IsRefType(static_cast<DataType>(scanned.dtype))) {
    return base::InvalidArgument("dtype " + std::to_string(scanned.dtype) +
                                 " is not a value type of tensorflow.DataType; set dtype");
  }
  const base::StatusOr<int64_t> count = ElementCount(scanned);
  if (!count.ok()) return count.status();
  if (!TensorFits(scanned.dtype, scanned.dims, spec)) {
    return base::InvalidArgument("expected " + DescribeTensor(spec) + ", got " + Describe(scanned));
  }
  MILLPOND_RETURN_IF_ERROR(CheckTensorBytes(scanned.dtype, scanned.dims, count.value()));
  Tensor& tensor = tensors->storage().tensors[index];
  const TypedField typed = FieldOf(static_cast<DataType>(scanned.dtype));
  if (typed.layout == Layout::kOther) {
    return DecodeWithTensorFlow(scanned, count.value(), &tensor);
  }
  const bool has_content = !scanned.content.AtEnd();
  if (has_content) MILLPOND_RETURN_IF_ERROR(CheckContentBytes(scanned, count.value()));
  MILLPOND_RETURN_IF_ERROR(AllocateTensor(scanned.dtype, scanned.dims, &tensor));
  return has_content ? DecodeContent(scanned, &tensor) : DecodeTypedField(scanned, typed, &tensor);
}

}  // namespace millpond::tensor
