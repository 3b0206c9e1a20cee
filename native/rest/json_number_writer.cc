#include "native/rest/json_number_writer.h"

#include "native/tensor/dtype.h"
#include "native/tensor/small_float.h"

namespace millpond::rest {
namespace {

namespace dtype = tensor::dtype;

// Writes elements. `Stored` is the type of an element in memory, and `write` writes one element.
template <typename Stored, typename Write>
void WriteEach(const tensor::TensorView& view, int64_t first, int64_t count, JsonWriter* json,
               Write write) {
  const auto* values = reinterpret_cast<const Stored*>(view.bytes.data());
  for (int64_t i = first; i < first + count && json->ok(); ++i) {
    if (i > first) json->Raw(", ");
    write(values[i]);
  }
}

template <typename T>
void WriteAs(const tensor::TensorView& view, int64_t first, int64_t count, JsonWriter* json) {
  WriteEach<T>(view, first, count, json, [json](T value) { json->Number(value); });
}

template <typename Small>
void WriteSmallFloats(const tensor::TensorView& view, int64_t first, int64_t count,
                      JsonWriter* json) {
  WriteEach<uint16_t>(view, first, count, json,
                      [json](uint16_t bits) { json->Number(Small::ToFloat(bits)); });
}

void WriteBools(const tensor::TensorView& view, int64_t first, int64_t count, JsonWriter* json) {
  WriteEach<char>(view, first, count, json,
                  [json](char value) { json->Raw(value != 0 ? "true" : "false"); });
}

}  // namespace

void WriteNumbers(const tensor::TensorView& view, int64_t first, int64_t count, JsonWriter* json) {
  switch (view.dtype) {
    case dtype::kFloat:
      return WriteAs<float>(view, first, count, json);
    case dtype::kDouble:
      return WriteAs<double>(view, first, count, json);
    case dtype::kInt8:
      return WriteAs<int8_t>(view, first, count, json);
    case dtype::kInt16:
      return WriteAs<int16_t>(view, first, count, json);
    case dtype::kInt32:
      return WriteAs<int32_t>(view, first, count, json);
    case dtype::kInt64:
      return WriteAs<int64_t>(view, first, count, json);
    case dtype::kUint8:
      return WriteAs<uint8_t>(view, first, count, json);
    case dtype::kUint16:
      return WriteAs<uint16_t>(view, first, count, json);
    case dtype::kUint32:
      return WriteAs<uint32_t>(view, first, count, json);
    case dtype::kUint64:
      return WriteAs<uint64_t>(view, first, count, json);
    case dtype::kHalf:
      return WriteSmallFloats<tensor::Half>(view, first, count, json);
    case dtype::kBfloat16:
      return WriteSmallFloats<tensor::Bfloat16>(view, first, count, json);
    case dtype::kBool:
      return WriteBools(view, first, count, json);
    default:
      return;  // the caller refuses dtypes for which JSON has no values
  }
}

}  // namespace millpond::rest
