#include "native/inference/infer_codec.h"

#include <string_view>
#include <utility>

#include "native/base/limits.h"
#include "native/base/share_scope.h"
#include "native/inference/infer_datatype.h"
#include "native/tensor/dtype.h"

namespace millpond::inference {
namespace {

using base::Status;
using base::WireReader;
using base::WireTag;
using base::WireType;
using base::WireWriter;

// Field numbers of the open inference protocol's messages (package inference).
namespace field {
constexpr uint32_t kRequestModelName = 1;
constexpr uint32_t kRequestModelVersion = 2;
constexpr uint32_t kRequestId = 3;
constexpr uint32_t kRequestParameters = 4;
constexpr uint32_t kRequestInputs = 5;
constexpr uint32_t kRequestOutputs = 6;
constexpr uint32_t kRequestRaw = 7;
constexpr uint32_t kInputName = 1;
constexpr uint32_t kInputDatatype = 2;
constexpr uint32_t kInputShape = 3;
constexpr uint32_t kInputParameters = 4;
constexpr uint32_t kInputContents = 5;
constexpr uint32_t kOutputName = 1;
constexpr uint32_t kOutputParameters = 2;
constexpr uint32_t kMapKey = 1;
constexpr uint32_t kMapValue = 2;
constexpr uint32_t kParameterBool = 1;
constexpr uint32_t kParameterInt64 = 2;
constexpr uint32_t kParameterString = 3;
constexpr uint32_t kParameterDouble = 4;
constexpr uint32_t kParameterUint64 = 5;
constexpr uint32_t kBoolContents = 1;
constexpr uint32_t kIntContents = 2;
constexpr uint32_t kInt64Contents = 3;
constexpr uint32_t kUintContents = 4;
constexpr uint32_t kUint64Contents = 5;
constexpr uint32_t kFp32Contents = 6;
constexpr uint32_t kFp64Contents = 7;
constexpr uint32_t kBytesContents = 8;
constexpr uint32_t kReplyModelName = 1;
constexpr uint32_t kReplyModelVersion = 2;
constexpr uint32_t kReplyId = 3;
constexpr uint32_t kReplyOutputs = 5;
constexpr uint32_t kReplyRaw = 6;
constexpr uint32_t kReplyOutputName = 1;
constexpr uint32_t kReplyOutputDatatype = 2;
constexpr uint32_t kReplyOutputShape = 3;
}  // namespace field

// --- Requests

bool ReadParameterValue(WireReader value, InferParameter* parameter) {
  WireTag tag;
  uint64_t number = 0;
  while (!value.AtEnd()) {
    if (!value.ReadTag(&tag)) return false;
    if (tag.type == WireType::kVarint &&
        (tag.field == field::kParameterBool || tag.field == field::kParameterInt64 ||
         tag.field == field::kParameterUint64)) {
      if (!value.ReadVarint(&number)) return false;
      parameter->number = static_cast<double>(number);
    } else if (tag.field == field::kParameterString && tag.type == WireType::kLengthDelimited) {
      if (!value.ReadString(&parameter->text)) return false;
    } else if (tag.field == field::kParameterDouble && tag.type == WireType::kFixed64) {
      if (!value.Copy(&parameter->number, sizeof parameter->number)) return false;
    } else if (!value.SkipField(tag)) {
      return false;
    }
  }
  return true;
}

// Reads one entry of map<string, InferParameter>.
bool ReadParameter(WireReader entry, InferParameter* parameter) {
  WireTag tag;
  WireReader value;
  while (!entry.AtEnd()) {
    if (!entry.ReadTag(&tag)) return false;
    if (tag.field == field::kMapKey && tag.type == WireType::kLengthDelimited) {
      if (!entry.ReadString(&parameter->name)) return false;
    } else if (tag.field == field::kMapValue && tag.type == WireType::kLengthDelimited) {
      if (!entry.ReadDelimited(&value) || !ReadParameterValue(value, parameter)) return false;
    } else if (!entry.SkipField(tag)) {
      return false;
    }
  }
  return true;
}

// Appends a size. It keeps at most one more than the rank that TensorFlow takes, which is enough to
// refuse the shape. So a byte on the wire does not become eight bytes in memory.
void AddSize(uint64_t size, std::vector<int64_t>* dims) {
  if (dims->size() <= base::kMaxTensorRank) dims->push_back(static_cast<int64_t>(size));
}

bool ReadShape(WireTag tag, WireReader* proto, std::vector<int64_t>* dims) {
  uint64_t size = 0;
  if (tag.type == WireType::kVarint) {
    if (!proto->ReadVarint(&size)) return false;
    AddSize(size, dims);
    return true;
  }
  WireReader packed;
  if (!proto->ReadDelimited(&packed)) return false;
  while (!packed.AtEnd()) {
    if (!packed.ReadVarint(&size)) return false;
    AddSize(size, dims);
  }
  return true;
}

// Decodes one message, and counts the objects that it makes in memory. Each may take only 2 bytes
// on the wire.
class MessageDecoder {
 public:
  explicit MessageDecoder(InferMessage* message) : message_(*message) {}

  bool has_too_many_names() const { return name_count_ > base::kMaxNamesPerRequest; }
  bool ReadField(WireTag tag, WireReader* proto);

 private:
  InferRequest& request() { return message_.request; }
  bool ReadInput(WireReader proto);
  bool ReadInputField(WireTag tag, WireReader* proto, InferRequest::Input* input,
                      WireReader* contents);
  bool ReadOutput(WireReader proto);
  bool AddParameter(WireReader* proto, std::vector<InferParameter>* parameters);
  bool ReadVersion(WireReader* proto);

  InferMessage& message_;
  size_t name_count_ = 0;
};

bool MessageDecoder::AddParameter(WireReader* proto, std::vector<InferParameter>* parameters) {
  WireReader entry;
  if (++name_count_ > base::kMaxNamesPerRequest) return false;
  return proto->ReadDelimited(&entry) && ReadParameter(entry, &parameters->emplace_back());
}

bool MessageDecoder::ReadVersion(WireReader* proto) {
  std::string version;
  if (!proto->ReadString(&version)) return false;
  SetModelVersion(version, &request().model_spec);
  return true;
}

bool MessageDecoder::ReadInputField(WireTag tag, WireReader* proto, InferRequest::Input* input,
                                    WireReader* contents) {
  if (tag.field == field::kInputShape &&
      (tag.type == WireType::kVarint || tag.type == WireType::kLengthDelimited)) {
    return ReadShape(tag, proto, &input->dims);
  }
  if (tag.type != WireType::kLengthDelimited) return proto->SkipField(tag);
  switch (tag.field) {
    case field::kInputName:
      return proto->ReadString(&input->name);
    case field::kInputDatatype:
      return proto->ReadString(&input->datatype);
    case field::kInputParameters:
      return AddParameter(proto, &request().tensor_parameters);
    case field::kInputContents:
      return proto->ReadDelimited(contents);
    default:
      return proto->SkipField(tag);
  }
}

bool MessageDecoder::ReadInput(WireReader proto) {
  InferRequest::Input& input = request().inputs.emplace_back();
  WireReader& contents = message_.contents.emplace_back();
  WireTag tag;
  while (!proto.AtEnd()) {
    if (!proto.ReadTag(&tag) || !ReadInputField(tag, &proto, &input, &contents)) return false;
  }
  return true;
}

bool MessageDecoder::ReadOutput(WireReader proto) {
  std::string& name = request().outputs.emplace_back();
  WireTag tag;
  while (!proto.AtEnd()) {
    if (!proto.ReadTag(&tag)) return false;
    const bool is_delimited = tag.type == WireType::kLengthDelimited;
    if (is_delimited && tag.field == field::kOutputName) {
      if (!proto.ReadString(&name)) return false;
    } else if (is_delimited && tag.field == field::kOutputParameters) {
      if (!AddParameter(&proto, &request().tensor_parameters)) return false;
    } else if (!proto.SkipField(tag)) {
      return false;
    }
  }
  return true;
}

bool MessageDecoder::ReadField(WireTag tag, WireReader* proto) {
  if (tag.type != WireType::kLengthDelimited) return proto->SkipField(tag);
  WireReader body;
  ++name_count_;
  switch (tag.field) {
    case field::kRequestModelName:
      return proto->ReadString(&request().model_spec.name);
    case field::kRequestModelVersion:
      return ReadVersion(proto);
    case field::kRequestId:
      return proto->ReadString(&request().id);
    case field::kRequestParameters:
      return AddParameter(proto, &request().parameters);
    case field::kRequestInputs:
      return proto->ReadDelimited(&body) && ReadInput(body);
    case field::kRequestOutputs:
      return proto->ReadDelimited(&body) && ReadOutput(body);
    case field::kRequestRaw:
      return proto->ReadDelimited(&message_.raw.emplace_back());
    default:
      return proto->SkipField(tag);
  }
}

Status TooManyNames() {
  return base::InvalidArgument("the request has more than " +
                               std::to_string(base::kMaxNamesPerRequest) +
                               " inputs, outputs and parameters; no signature has that many");
}

// Checks the contents of one input. Call it after the check of the parameters: an input in shared
// memory has no raw contents, and its error should name the shared memory.
Status CheckRaw(const InferMessage& message, size_t input) {
  if (message.raw.size() != message.request.inputs.size()) {
    return base::InvalidArgument("raw_input_contents has " + std::to_string(message.raw.size()) +
                                 " entries for " + std::to_string(message.request.inputs.size()) +
                                 " inputs; send one for each, in the same order");
  }
  if (message.contents[input].AtEnd()) return {};
  return base::InvalidArgument("it has contents beside raw_input_contents; send one of them");
}

// --- Typed contents

// Calls `visit` with a reader at each value of a repeated field, packed or not, whose values have
// the wire type `single`. Returns false if the bytes do not parse, or if `visit` returns false.
template <typename Visit>
bool VisitValues(WireReader contents, uint32_t number, WireType single, const Visit& visit) {
  WireTag tag;
  while (!contents.AtEnd()) {
    if (!contents.ReadTag(&tag)) return false;
    if (tag.field == number && tag.type == single) {
      if (!visit(&contents)) return false;
    } else if (tag.field == number && tag.type == WireType::kLengthDelimited) {
      WireReader packed;
      if (!contents.ReadDelimited(&packed)) return false;
      while (!packed.AtEnd()) {
        if (!visit(&packed)) return false;
      }
    } else if (!contents.SkipField(tag)) {
      return false;
    }
  }
  return true;
}

Status NoContents() { return base::InvalidArgument("its bytes are not an InferTensorContents"); }

// The typed field of a datatype: its number, its wire type, and its name for error messages.
struct ContentsField {
  uint32_t number;
  WireType single;
  const char* name;
};

// The tensor that an input is to become.
struct Wanted {
  int dtype;
  const std::vector<int64_t>& dims;
  int64_t element_count;
  size_t index;
  tensor::TensorList* tensors;
};

// Reads the values of a field. It counts them with `skip` before it allocates memory for the shape.
// Then `store(element, reader, refused)` reads each value. It sets `refused` if there is no memory
// for the value.
template <typename Skip, typename Store>
Status ReadValues(WireReader contents, const ContentsField& from, const Wanted& wanted,
                  const Skip& skip, const Store& store) {
  int64_t count = 0;
  const auto count_one = [&](WireReader* reader) {
    ++count;
    return skip(reader);
  };
  if (!VisitValues(contents, from.number, from.single, count_one)) return NoContents();
  if (count != wanted.element_count) {
    return base::InvalidArgument(std::string(from.name) + " holds " + std::to_string(count) +
                                 " values, the shape has " + std::to_string(wanted.element_count) +
                                 " elements");
  }
  MILLPOND_RETURN_IF_ERROR(
      tensor::MakeTensor(wanted.dtype, wanted.dims, wanted.index, wanted.tensors));
  int64_t element = 0;
  base::DecodeLook look;
  Status refused;
  const auto store_one = [&](WireReader* reader) {
    return look.Count() && store(element++, reader, &refused);
  };
  if (VisitValues(contents, from.number, from.single, store_one)) return {};
  if (!refused.ok()) return refused;
  if (!look.status().ok()) return look.status();
  return base::InvalidArgument(std::string(from.name) + " has value " +
                               std::to_string(element - 1) + " out of the range of " +
                               std::string(DatatypeName(wanted.dtype)));
}

// Reads varints. `Wire` is the type of the field's varints, and `T` the type of an element.
template <typename T, typename Wire>
Status ReadVarints(WireReader contents, const ContentsField& from, const Wanted& wanted) {
  uint64_t raw = 0;
  const auto skip = [&](WireReader* reader) { return reader->ReadVarint(&raw); };
  const auto store = [&](int64_t element, WireReader* reader, Status*) {
    if (!reader->ReadVarint(&raw)) return false;
    const auto value = static_cast<Wire>(raw);
    static_cast<T*>(tensor::MutableElements(wanted.index, wanted.tensors))[element] =
        static_cast<T>(value);
    return static_cast<Wire>(static_cast<T>(value)) == value;
  };
  return ReadValues(contents, from, wanted, skip, store);
}

Status ReadBools(WireReader contents, const Wanted& wanted) {
  uint64_t raw = 0;
  const auto skip = [&](WireReader* reader) { return reader->ReadVarint(&raw); };
  const auto store = [&](int64_t element, WireReader* reader, Status*) {
    if (!reader->ReadVarint(&raw)) return false;
    static_cast<bool*>(tensor::MutableElements(wanted.index, wanted.tensors))[element] = raw != 0;
    return true;
  };
  return ReadValues(contents, {field::kBoolContents, WireType::kVarint, "bool_contents"}, wanted,
                    skip, store);
}

template <typename T>
Status ReadFixed(WireReader contents, const ContentsField& from, const Wanted& wanted) {
  T value{};
  const auto skip = [&](WireReader* reader) { return reader->Copy(&value, sizeof value); };
  const auto store = [&](int64_t element, WireReader* reader, Status*) {
    void* const elements = tensor::MutableElements(wanted.index, wanted.tensors);
    return reader->Copy(static_cast<T*>(elements) + element, sizeof(T));
  };
  return ReadValues(contents, from, wanted, skip, store);
}

// Reads strings, which are never packed: each string is a field of its own.
Status ReadStrings(WireReader contents, const Wanted& wanted) {
  WireReader body;
  const auto skip = [&](WireReader* reader) { return reader->ReadDelimited(&body); };
  const auto store = [&](int64_t element, WireReader* reader, Status* refused) {
    if (!reader->ReadDelimited(&body)) return false;
    const size_t size = body.remaining_bytes();
    const auto to = tensor::ResizeString(wanted.index, element, size, wanted.tensors);
    *refused = to.status();
    return to.ok() && (size == 0 || body.Copy(to.value(), size));
  };
  return ReadValues(contents, {field::kBytesContents, WireType::kLengthDelimited, "bytes_contents"},
                    wanted, skip, store);
}

Status ReadTypedElements(WireReader contents, const Wanted& wanted) {
  constexpr ContentsField kInts{field::kIntContents, WireType::kVarint, "int_contents"};
  constexpr ContentsField kUints{field::kUintContents, WireType::kVarint, "uint_contents"};
  switch (wanted.dtype) {
    case tensor::dtype::kBool:
      return ReadBools(contents, wanted);
    case tensor::dtype::kInt8:
      return ReadVarints<int8_t, int32_t>(contents, kInts, wanted);
    case tensor::dtype::kInt16:
      return ReadVarints<int16_t, int32_t>(contents, kInts, wanted);
    case tensor::dtype::kInt32:
      return ReadVarints<int32_t, int32_t>(contents, kInts, wanted);
    case tensor::dtype::kInt64:
      return ReadVarints<int64_t, int64_t>(
          contents, {field::kInt64Contents, WireType::kVarint, "int64_contents"}, wanted);
    case tensor::dtype::kUint8:
      return ReadVarints<uint8_t, uint32_t>(contents, kUints, wanted);
    case tensor::dtype::kUint16:
      return ReadVarints<uint16_t, uint32_t>(contents, kUints, wanted);
    case tensor::dtype::kUint32:
      return ReadVarints<uint32_t, uint32_t>(contents, kUints, wanted);
    case tensor::dtype::kUint64:
      return ReadVarints<uint64_t, uint64_t>(
          contents, {field::kUint64Contents, WireType::kVarint, "uint64_contents"}, wanted);
    case tensor::dtype::kFloat:
      return ReadFixed<float>(contents, {field::kFp32Contents, WireType::kFixed32, "fp32_contents"},
                              wanted);
    case tensor::dtype::kDouble:
      return ReadFixed<double>(contents,
                               {field::kFp64Contents, WireType::kFixed64, "fp64_contents"}, wanted);
    case tensor::dtype::kString:
      return ReadStrings(contents, wanted);
    default:
      return base::InvalidArgument(std::string(DatatypeName(wanted.dtype)) +
                                   " has no typed contents; send raw_input_contents");
  }
}

// --- Replies

size_t ShapeBytes(const std::vector<int64_t>& dims) {
  size_t bytes = 0;
  for (const int64_t size : dims) bytes += base::VarintBytes(static_cast<uint64_t>(size));
  return bytes;
}

size_t EntryBytes(const InferReplyOutput& output, size_t shape_bytes) {
  const size_t bytes = base::DelimitedBytes(field::kReplyOutputName, output.name->size()) +
                       base::DelimitedBytes(field::kReplyOutputDatatype, output.datatype.size());
  return shape_bytes == 0 ? bytes
                          : bytes + base::DelimitedBytes(field::kReplyOutputShape, shape_bytes);
}

// One output of a reply, and its sizes on the wire.
struct ReplyOutput {
  const InferReplyOutput* described;
  tensor::TensorView tensor;
  size_t shape_bytes = 0;  // packed
  size_t entry_bytes = 0;  // of the InferOutputTensor
  size_t raw_bytes = 0;
};

std::vector<ReplyOutput> SizeOutputs(const InferReply& reply, base::ReplyBuffer* buffer) {
  std::vector<ReplyOutput> outputs;
  outputs.reserve(reply.outputs.size());
  for (const InferReplyOutput& described : reply.outputs) {
    ReplyOutput output{&described, tensor::ViewTensor(reply.tensors, described.tensor_index)};
    output.shape_bytes = ShapeBytes(output.tensor.dims);
    output.entry_bytes = EntryBytes(described, output.shape_bytes);
    output.raw_bytes =
        RawElementBytes(output.tensor, reply.tensors, described.tensor_index, buffer);
    outputs.push_back(std::move(output));
  }
  return outputs;
}

size_t ReplyBytesOf(const InferReply& reply, const std::string& version,
                    const std::vector<ReplyOutput>& outputs) {
  size_t bytes = base::DelimitedBytes(field::kReplyModelName, reply.model_name.size()) +
                 base::DelimitedBytes(field::kReplyModelVersion, version.size());
  if (!reply.id.empty()) bytes += base::DelimitedBytes(field::kReplyId, reply.id.size());
  for (const ReplyOutput& output : outputs) {
    bytes += base::DelimitedBytes(field::kReplyOutputs, output.entry_bytes) +
             base::DelimitedBytes(field::kReplyRaw, output.raw_bytes);
  }
  return bytes;
}

void WriteEntry(const ReplyOutput& output, WireWriter* writer) {
  writer->Delimited(field::kReplyOutputs, output.entry_bytes);
  writer->BytesField(field::kReplyOutputName, *output.described->name);
  writer->BytesField(field::kReplyOutputDatatype, output.described->datatype);
  if (output.shape_bytes == 0) return;
  writer->Delimited(field::kReplyOutputShape, output.shape_bytes);
  for (const int64_t size : output.tensor.dims) writer->Varint(static_cast<uint64_t>(size));
}

}  // namespace

Status DecodeInferMessage(WireReader proto, InferMessage* message) {
  const size_t message_bytes = proto.remaining_bytes();
  MessageDecoder decoder(message);
  WireTag tag;
  while (!proto.AtEnd()) {
    const bool parses = proto.ReadTag(&tag) && decoder.ReadField(tag, &proto);
    if (decoder.has_too_many_names()) return TooManyNames();
    if (parses) continue;
    return base::InvalidArgument("the message's " + std::to_string(message_bytes) +
                                 " bytes are not an inference.ModelInferRequest");
  }
  return {};
}

std::string PeekInferModelName(WireReader proto) {
  WireTag tag;
  std::string name;
  while (!proto.AtEnd() && proto.ReadTag(&tag)) {
    if (tag.field == field::kRequestModelName && tag.type == WireType::kLengthDelimited) {
      return proto.ReadString(&name) ? name : "";
    }
    if (!proto.SkipField(tag)) return "";
  }
  return "";
}

Status MessageElements::Read(size_t input, int dtype, const std::vector<int64_t>& dims,
                             int64_t element_count, size_t index,
                             tensor::TensorList* tensors) const {
  if (!message_.raw.empty()) {
    MILLPOND_RETURN_IF_ERROR(CheckRaw(message_, input));
    return ReadRawElements(message_.raw[input], dtype, dims, element_count, index, tensors);
  }
  return ReadTypedElements(message_.contents[input], {dtype, dims, element_count, index, tensors});
}

base::StatusOr<base::ReplyBytes> EncodeInferReply(const InferReply& reply,
                                                  const base::ReplyLimits& limits) {
  base::ReplyBuffer buffer(limits);
  const std::string version = std::to_string(reply.version);
  const std::vector<ReplyOutput> outputs = SizeOutputs(reply, &buffer);
  char* const to = buffer.Extend(ReplyBytesOf(reply, version, outputs));
  if (to == nullptr) return buffer.status();
  WireWriter writer(to);
  writer.BytesField(field::kReplyModelName, reply.model_name);
  writer.BytesField(field::kReplyModelVersion, version);
  if (!reply.id.empty()) writer.BytesField(field::kReplyId, reply.id);
  for (const ReplyOutput& output : outputs) WriteEntry(output, &writer);
  for (const ReplyOutput& output : outputs) {
    writer.Delimited(field::kReplyRaw, output.raw_bytes);
    WriteRawElements(output.tensor, reply.tensors, output.described->tensor_index, &buffer,
                     &writer);
  }
  return buffer.Take();
}

}  // namespace millpond::inference
