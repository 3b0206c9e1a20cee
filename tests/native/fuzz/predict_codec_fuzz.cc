#include <set>
#include <string>

#include "native/base/wire_reader.h"
#include "tests/native/fuzz/fuzz_target.h"
#include "tests/native/predict_decoders.h"

namespace millpond::fuzz {
namespace {

using base::WireReader;
using base::WireTag;
using base::WireType;

// The parts of a message for which the decoder and protobuf differ on purpose.
struct Oddities {
  // Protobuf would merge the values. The decoder refuses the entry.
  bool has_entry_with_two_values = false;
  // Protobuf refuses a tensor that does not parse. The decoder leaves tensors to DecodeTensor, so
  // it does not read one that a later input of the same name replaces.
  bool has_input_twice = false;
};

void ReadEntry(WireReader entry, std::set<std::string>* names, Oddities* oddities) {
  WireTag tag;
  std::string name;
  int value_count = 0;
  while (!entry.AtEnd() && entry.ReadTag(&tag)) {
    WireReader value;
    if (tag.type == WireType::kLengthDelimited && tag.field == 1) {
      if (!entry.ReadBytes(&name)) break;
    } else if (tag.type == WireType::kLengthDelimited && tag.field == 2) {
      if (!entry.ReadDelimited(&value)) break;
      ++value_count;
    } else if (!entry.SkipField(tag)) {
      break;
    }
  }
  if (value_count > 1) oddities->has_entry_with_two_values = true;
  if (!names->insert(name).second) oddities->has_input_twice = true;
}

Oddities OdditiesOf(const std::string& bytes) {
  const testing::SegmentedBytes segmented(bytes);
  WireReader request = segmented.reader();
  Oddities oddities;
  std::set<std::string> names;
  WireTag tag;
  while (!request.AtEnd() && request.ReadTag(&tag)) {
    WireReader entry;
    if (tag.type == WireType::kLengthDelimited && tag.field == 2) {
      if (!request.ReadDelimited(&entry)) break;
      ReadEntry(entry, &names, &oddities);
    } else if (!request.SkipField(tag)) {
      break;
    }
  }
  return oddities;
}

}  // namespace

// A PredictRequest is read as protobuf reads it, and refused if protobuf refuses it, except for the
// oddities above. A refusal is INVALID_ARGUMENT with a message.
Verdict Run(std::string_view input) {
  static const testing::ProtobufDecoder protobuf;
  const std::string bytes(input);
  const testing::Decoded ours = testing::DecodeOurs(bytes, {bytes.size() / 2});
  const testing::Decoded expected = protobuf.Decode(bytes);
  FUZZ_CHECK(ours.is_ok == ours.status.message().empty(), ours.status.message());
  FUZZ_CHECK(ours.is_ok || ours.status.code() == base::Code::kInvalidArgument,
             ours.status.message());
  const bool is_ok = ours.is_ok && testing::DoAllTensorsParse(ours);
  const Verdict verdict = ours.is_ok ? Verdict::kTaken : Verdict::kRefused;
  if (is_ok != expected.is_ok) {
    const Oddities oddities = OdditiesOf(bytes);
    FUZZ_CHECK(is_ok ? oddities.has_input_twice : oddities.has_entry_with_two_values,
               is_ok ? "protobuf refuses it" : "protobuf reads it: " + ours.status.message());
    return verdict;
  }
  if (!is_ok) return verdict;
  FUZZ_CHECK(ours.text == expected.text, ours.text + " for " + expected.text);
  FUZZ_CHECK(ours.tensors.size() == expected.tensors.size(), "other inputs");
  for (size_t i = 0; i < ours.tensors.size(); ++i) {
    tensorflow::TensorProto tensor;
    FUZZ_CHECK(tensor.ParseFromString(ours.tensors[i]), "tensor");
    FUZZ_CHECK(tensor.SerializeAsString() == expected.tensors[i], tensor.ShortDebugString());
  }
  return verdict;
}

}  // namespace millpond::fuzz
