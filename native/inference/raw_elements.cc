#include "native/inference/raw_elements.h"

#include <string>
#include <string_view>

#include "native/base/share_scope.h"
#include "native/inference/infer_datatype.h"
#include "native/tensor/dtype.h"
#include "native/tensor/signature.h"

namespace millpond::inference {
namespace {

using base::Status;
using base::WireReader;

constexpr size_t kLengthBytes = sizeof(uint32_t);

// The bytes that are copied between two checks that the reply is still wanted.
constexpr size_t kPieceBytes = size_t{1} << 20U;

Status WrongSize(size_t got_bytes, int dtype, const std::vector<int64_t>& dims,
                 const std::string& want) {
  return base::InvalidArgument("the raw contents hold " + std::to_string(got_bytes) + " bytes, " +
                               tensor::DescribeTensor(dtype, true, dims) + " takes " + want);
}

Status NoStrings(int64_t element, int64_t element_count) {
  return base::InvalidArgument("the raw contents are not " + std::to_string(element_count) +
                               " BYTES elements, of 4 bytes of little-endian length and then the "
                               "bytes: wrong from element " +
                               std::to_string(element) + " on");
}

Status ReadStrings(WireReader raw, const std::vector<int64_t>& dims, int64_t element_count,
                   size_t index, tensor::TensorList* tensors) {
  // Refuses too few bytes before it allocates memory for the shape.
  if (static_cast<int64_t>(raw.remaining_bytes() / kLengthBytes) < element_count) {
    return WrongSize(raw.remaining_bytes(), tensor::dtype::kString, dims,
                     "4 for each element's length, and its bytes");
  }
  MILLPOND_RETURN_IF_ERROR(tensor::MakeTensor(tensor::dtype::kString, dims, index, tensors));
  base::DecodeLook look;
  for (int64_t element = 0; element < element_count; ++element) {
    uint32_t size = 0;
    if (!raw.ReadFixed32(&size) || size > raw.remaining_bytes()) {
      return NoStrings(element, element_count);
    }
    const auto to = tensor::ResizeString(index, element, size, tensors);
    if (!to.ok()) return to.status();
    if (size > 0 && !raw.Copy(to.value(), size)) return NoStrings(element, element_count);
    if (!look.Count()) return look.status();
  }
  return raw.AtEnd() ? Status() : NoStrings(element_count, element_count);
}

// Makes each bool 0 or 1, because other bytes must not reach a kernel as bools.
void NormalizeBools(unsigned char* bytes, int64_t count) {
  for (int64_t i = 0; i < count; ++i) bytes[i] = bytes[i] != 0 ? 1 : 0;
}

}  // namespace

Status ReadRawElements(WireReader raw, int dtype, const std::vector<int64_t>& dims,
                       int64_t element_count, size_t index, tensor::TensorList* tensors) {
  if (dtype == tensor::dtype::kString) return ReadStrings(raw, dims, element_count, index, tensors);
  const size_t got_bytes = raw.remaining_bytes();
  int64_t want_bytes = 0;
  if (__builtin_mul_overflow(element_count, static_cast<int64_t>(tensor::ElementBytes(dtype)),
                             &want_bytes) ||
      static_cast<int64_t>(got_bytes) != want_bytes) {
    return WrongSize(got_bytes, dtype, dims,
                     std::to_string(tensor::ElementBytes(dtype)) + " for each element");
  }
  MILLPOND_RETURN_IF_ERROR(tensor::MakeTensor(dtype, dims, index, tensors));
  if (element_count == 0) return {};
  void* const to = tensor::MutableElements(index, tensors);
  if (!raw.Copy(to, got_bytes)) return base::Internal("the raw contents end early");
  if (dtype == tensor::dtype::kBool) NormalizeBools(static_cast<unsigned char*>(to), element_count);
  return {};
}

size_t RawElementBytes(const tensor::TensorView& view, const tensor::TensorList& tensors,
                       size_t index, base::ReplyBuffer* reply) {
  if (view.dtype != tensor::dtype::kString) return view.bytes.size();
  size_t bytes = static_cast<size_t>(view.element_count) * kLengthBytes;
  for (int64_t element = 0; element < view.element_count; ++element) {
    if (element % base::ReplyBuffer::kLookElements == 0 && !reply->CheckIsWanted()) break;
    bytes += tensor::StringAt(tensors, index, element).size();
  }
  return bytes;
}

void WriteRawElements(const tensor::TensorView& view, const tensor::TensorList& tensors,
                      size_t index, base::ReplyBuffer* reply, base::WireWriter* writer) {
  if (view.dtype != tensor::dtype::kString) {
    std::string_view left = view.bytes;
    while (!left.empty() && reply->CheckIsWanted()) {
      const std::string_view piece = left.substr(0, kPieceBytes);
      writer->Bytes(piece.data(), piece.size());
      left.remove_prefix(piece.size());
    }
    return;
  }
  for (int64_t element = 0; element < view.element_count; ++element) {
    if (element % base::ReplyBuffer::kLookElements == 0 && !reply->CheckIsWanted()) break;
    const std::string_view value = tensor::StringAt(tensors, index, element);
    const auto size = static_cast<uint32_t>(value.size());
    writer->Bytes(&size, kLengthBytes);
    writer->Bytes(value.data(), value.size());
  }
}

}  // namespace millpond::inference
