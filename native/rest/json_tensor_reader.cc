#include "native/rest/json_tensor_reader.h"

#include <algorithm>
#include <string_view>

#include "native/base/limits.h"
#include "native/rest/base64.h"
#include "native/tensor/dtype.h"
#include "native/tensor/small_float.h"
#include "native/tensor/tensor_access.h"

namespace millpond::rest {
namespace {

using base::Status;
namespace dtype = tensor::dtype;

// The number of elements that a tensor has room for at first: enough for one row of most requests.
constexpr int64_t kFirstCapacity = 32;
// The factors by which a full tensor grows, at the least and at the most.
constexpr int64_t kMinGrowth = 2;
constexpr int64_t kMaxGrowth = 16;

// The bytes of a tensor for each string, apart from the string's text
// (sizeof(tensorflow::tstring)).
constexpr int64_t kStringBytes = 24;

// Readers of one element, for each kind of dtype.
template <typename T>
struct IntegerElement {
  static ReadResult Read(JsonReader* reader, const ElementPlace& to) {
    return ReadInteger(reader, reinterpret_cast<T*>(to.elements) + to.element);
  }
};

template <typename T>
struct FloatElement {
  static ReadResult Read(JsonReader* reader, const ElementPlace& to) {
    return ReadFloat(reader, reinterpret_cast<T*>(to.elements) + to.element);
  }
};

template <typename Small>
struct SmallFloatElement {
  static ReadResult Read(JsonReader* reader, const ElementPlace& to) {
    const JsonReader::Mark mark = reader->Here();
    double number = 0;
    const ReadResult result = ReadFloat(reader, &number);
    const uint16_t bits = Small::FromDouble(number);
    if (std::isfinite(number) && Small::IsInfinite(bits)) {
      reader->GoBack(mark);
      return ReadResult::kOutOfRange;
    }
    reinterpret_cast<uint16_t*>(to.elements)[to.element] = bits;
    return result;
  }
};

struct BoolElement {
  static ReadResult Read(JsonReader* reader, const ElementPlace& to) {
    const bool is_true = reader->Accept("true");
    if (!is_true && !reader->Accept("false")) return ReadResult::kOther;
    reinterpret_cast<bool*>(to.elements)[to.element] = is_true;
    return ReadResult::kRead;
  }
};

struct StringElement {
  static ReadResult Read(JsonReader* reader, const ElementPlace& to) {
    if (reader->Peek() == '{') return ReadBase64(reader, to);
    std::string_view text;
    if (reader->Peek() != '"') return ReadResult::kOther;
    if (!reader->ReadString(&text)) return ReadResult::kRead;  // it has failed: the list ends
    const Status set = tensor::SetString(to.index, to.element, text, to.tensors);
    if (!set.ok()) reader->Fail(set);
    return ReadResult::kRead;
  }

  static ReadResult ReadBase64(JsonReader* reader, const ElementPlace& to) {
    const JsonReader::Mark mark = reader->Here();
    std::string_view text;
    const bool is_coded = EnterBase64(reader);
    const JsonReader::Mark coded = reader->Here();
    if (is_coded && reader->ReadString(&text)) {
      const auto plain = tensor::ResizeString(to.index, to.element, PlainBytes(text), to.tensors);
      if (!plain.ok()) {
        reader->Fail(plain.status());
        return ReadResult::kRead;
      }
      if (!DecodeBase64(text, plain.value())) {
        reader->GoBack(coded);
        return ReadResult::kInvalidBase64;
      }
      if (!reader->NextKey(&text)) return ReadResult::kRead;
    }
    if (!reader->ok()) return ReadResult::kRead;
    reader->GoBack(mark);
    return ReadResult::kOther;
  }

  // Moves the cursor from the brace of {"b64": "..."} to its string.
  static bool EnterBase64(JsonReader* reader) {
    std::string_view key;
    return reader->EnterObject() && reader->NextKey(&key) && key == "b64" && reader->Peek() == '"';
  }
};

// Returns the capacity to which a full tensor of `used` elements grows. It is the expected final
// size if the rest of the body has as many elements per byte as before. It is bounded by the growth
// factors and by the largest tensor.
int64_t NextCapacity(int dtype, int64_t used, const JsonReader& reader) {
  if (used == 0) return kFirstCapacity;
  const double rest_ratio =
      static_cast<double>(reader.remaining_bytes()) / static_cast<double>(reader.offset());
  const double expected = std::min(static_cast<double>(used) * 1.1 * (1 + rest_ratio), 1e18);
  const int64_t wanted =
      std::clamp(static_cast<int64_t>(expected), kMinGrowth * used, kMaxGrowth * used);
  const auto element_bytes =
      dtype == dtype::kString ? kStringBytes : static_cast<int64_t>(tensor::ElementBytes(dtype));
  return std::max(std::min(wanted, base::kMaxTensorBytes / element_bytes), used + 1);
}

}  // namespace

TensorReader::TensorReader(const tensor::TensorSpec& spec, size_t index,
                           tensor::TensorList* tensors)
    : spec_(spec), next_{index, tensors} {}

bool TensorReader::ReadWhole(JsonReader* reader) { return ReadAt(reader, 0); }

bool TensorReader::ReadRow(JsonReader* reader) {
  if (dims_.empty()) {
    dims_.push_back(kUnknown);
    path_.push_back(0);
  }
  path_[0] = row_count_++;
  return ReadAt(reader, 1);
}

bool TensorReader::ReadAt(JsonReader* reader, size_t depth) {
  if (reader->Peek() == '[') return ReadList(reader, depth);
  int64_t position = 0;
  return SetRank(reader, depth) && ReadElements(reader, false, &position);
}

bool TensorReader::ReadList(JsonReader* reader, size_t depth) {
  if (!OpenList(reader, depth) || !reader->EnterArray()) return false;
  int64_t size = 0;
  while (reader->NextElement()) {
    path_[depth] = size;
    if (reader->Peek() != '[') {
      if (!SetRank(reader, depth + 1) || !ReadElements(reader, true, &path_[depth])) return false;
      size = path_[depth];
      break;
    }
    if (!ReadList(reader, depth + 1)) return false;
    ++size;
  }
  return reader->ok() && CloseList(reader, depth, size);
}

bool TensorReader::ReadElements(JsonReader* reader, bool is_list, int64_t* position) {
  switch (spec_.dtype) {
    case dtype::kFloat:
      return ReadElementsOf<FloatElement<float>>(reader, is_list, position);
    case dtype::kDouble:
      return ReadElementsOf<FloatElement<double>>(reader, is_list, position);
    case dtype::kInt8:
      return ReadElementsOf<IntegerElement<int8_t>>(reader, is_list, position);
    case dtype::kInt16:
      return ReadElementsOf<IntegerElement<int16_t>>(reader, is_list, position);
    case dtype::kInt32:
      return ReadElementsOf<IntegerElement<int32_t>>(reader, is_list, position);
    case dtype::kInt64:
      return ReadElementsOf<IntegerElement<int64_t>>(reader, is_list, position);
    case dtype::kUint8:
      return ReadElementsOf<IntegerElement<uint8_t>>(reader, is_list, position);
    case dtype::kUint16:
      return ReadElementsOf<IntegerElement<uint16_t>>(reader, is_list, position);
    case dtype::kUint32:
      return ReadElementsOf<IntegerElement<uint32_t>>(reader, is_list, position);
    case dtype::kUint64:
      return ReadElementsOf<IntegerElement<uint64_t>>(reader, is_list, position);
    case dtype::kHalf:
      return ReadElementsOf<SmallFloatElement<tensor::Half>>(reader, is_list, position);
    case dtype::kBfloat16:
      return ReadElementsOf<SmallFloatElement<tensor::Bfloat16>>(reader, is_list, position);
    case dtype::kBool:
      return ReadElementsOf<BoolElement>(reader, is_list, position);
    case dtype::kString:
      return ReadElementsOf<StringElement>(reader, is_list, position);
    default:
      return reader->Fail({base::Code::kUnimplemented,
                           "input '" + spec_.name + "' is " + tensor::DtypeName(spec_.dtype) +
                               ", for which JSON has no values; send it over gRPC"});
  }
}

// Reads elements. This is the hot loop of a request.
template <typename Element>
bool TensorReader::ReadElementsOf(JsonReader* reader, bool is_list, int64_t* position) {
  int64_t count = *position;
  do {
    if (next_.element == capacity_ && !Grow(reader)) return false;
    reader->Peek();
    const ReadResult result = Element::Read(reader, next_);
    if (result != ReadResult::kRead) {
      *position = count;
      return FailElement(reader, result);
    }
    ++next_.element;
    ++count;
    if (!look_.Count()) return reader->Fail(look_.status());
  } while (is_list && reader->NextElement());
  *position = count;
  return reader->ok();
}

bool TensorReader::OpenList(JsonReader* reader, size_t depth) {
  if (rank_ != kUnknown && static_cast<int64_t>(depth) >= rank_) {
    return FailLists(reader, depth, "a list, but the others have no list");
  }
  if (depth == dims_.size()) {
    dims_.push_back(kUnknown);
    path_.push_back(0);
  }
  return true;
}

bool TensorReader::CloseList(JsonReader* reader, size_t depth, int64_t size) {
  if (dims_[depth] == kUnknown) dims_[depth] = size;
  if (dims_[depth] != size) {
    return FailLists(reader, depth,
                     "a list of " + std::to_string(size) + ", but the others have " +
                         std::to_string(dims_[depth]));
  }
  return size > 0 || SetRank(reader, depth + 1);
}

// Sets the rank, or checks it. All elements are at the same depth.
bool TensorReader::SetRank(JsonReader* reader, size_t rank) {
  if (rank_ == kUnknown) rank_ = static_cast<int64_t>(rank);
  if (rank_ == static_cast<int64_t>(rank)) return true;
  return FailLists(reader, rank, "no list, but the others have a list");
}

bool TensorReader::Grow(JsonReader* reader) {
  const int64_t used = next_.element;
  const int64_t capacity = NextCapacity(spec_.dtype, used, *reader);
  const Status made = capacity_ == 0
                          ? tensor::MakeTensor(spec_.dtype, {capacity}, next_.index, next_.tensors)
                          : tensor::ExtendTensor(capacity, used, next_.index, next_.tensors);
  if (!made.ok()) return reader->Fail({made.code(), Where(0) + made.message()});
  capacity_ = capacity;
  next_.elements = static_cast<char*>(tensor::MutableElements(next_.index, next_.tensors));
  return true;
}

std::string TensorReader::Where(size_t depth) const {
  std::string where = "input '" + spec_.name + "'";
  if (depth > 0) where += " at ";
  for (size_t i = 0; i < depth; ++i) where += "[" + std::to_string(path_[i]) + "]";
  return where + ": ";
}

bool TensorReader::FailElement(JsonReader* reader, ReadResult result) {
  if (result == ReadResult::kInvalidBase64) {
    return reader->Fail(base::InvalidArgument(Where(path_.size()) + reader->Excerpt() +
                                              " is not valid base64; encode the bytes of \"b64\" "
                                              "as in RFC 4648"));
  }
  const char* const what =
      result == ReadResult::kOutOfRange ? " is out of the range of " : " is not of expected type: ";
  return reader->Fail(base::InvalidArgument(Where(path_.size()) + reader->Excerpt() + what +
                                            tensor::DtypeName(spec_.dtype)));
}

bool TensorReader::FailLists(JsonReader* reader, size_t depth, const std::string& what) {
  return reader->Fail(base::InvalidArgument(Where(std::min(depth, path_.size())) + what +
                                            "; expected " + tensor::DescribeTensor(spec_)));
}

std::vector<int64_t> TensorReader::FullDims() const {
  std::vector<int64_t> dims = dims_;
  if (row_count_ > 0) dims[0] = row_count_;
  if (next_.element > 0 || !spec_.is_rank_known) return dims;
  for (size_t i = dims.size(); i < spec_.dims.size(); ++i) {
    dims.push_back(std::max<int64_t>(0, spec_.dims[i]));
  }
  return dims;
}

Status TensorReader::Finish() {
  const std::vector<int64_t> dims = FullDims();
  if (!tensor::TensorFits(spec_.dtype, dims, spec_)) {
    return base::InvalidArgument("input '" + spec_.name + "': expected " +
                                 tensor::DescribeTensor(spec_) + ", got " +
                                 tensor::DescribeTensor(spec_.dtype, true, dims));
  }
  const Status made = capacity_ == 0
                          ? tensor::MakeTensor(spec_.dtype, dims, next_.index, next_.tensors)
                          : tensor::ShapeTensor(dims, next_.index, next_.tensors);
  if (made.ok()) return {};
  return {made.code(), "input '" + spec_.name + "': " + made.message()};
}

}  // namespace millpond::rest
