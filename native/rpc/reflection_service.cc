#include "native/rpc/reflection_service.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "native/base/status.h"
#include "native/base/wire_writer.h"

namespace millpond::rpc {
namespace {

using base::Status;
using base::WireReader;
using base::WireTag;
using base::WireType;

// Fields of ServerReflectionRequest. If a request has several questions, the last one counts.
constexpr uint32_t kHost = 1;
constexpr uint32_t kFileByFilename = 3;
constexpr uint32_t kFileContainingSymbol = 4;
constexpr uint32_t kFileContainingExtension = 5;
constexpr uint32_t kAllExtensionNumbers = 6;
constexpr uint32_t kListServices = 7;
// Fields of ExtensionRequest.
constexpr uint32_t kContainingType = 1;
constexpr uint32_t kExtensionNumber = 2;
// Fields of ServerReflectionResponse.
constexpr uint32_t kValidHost = 1;
constexpr uint32_t kOriginalRequest = 2;
constexpr uint32_t kFileDescriptorResponse = 4;
constexpr uint32_t kExtensionNumbersResponse = 5;
constexpr uint32_t kListServicesResponse = 6;
constexpr uint32_t kErrorResponse = 7;
// Fields of ExtensionNumberResponse and ErrorResponse.
constexpr uint32_t kBaseTypeName = 1;
constexpr uint32_t kNumber = 2;
constexpr uint32_t kErrorCode = 1;
constexpr uint32_t kErrorMessage = 2;

struct Question {
  uint32_t field = 0;  // of the question; 0: the request has no question
  std::string name;
  int32_t extension_number = 0;
  std::string host;
};

// The field of a ServerReflectionResponse that answers the question.
struct Answer {
  uint32_t field = 0;
  std::string body;
};

bool ReadExtension(WireReader proto, Question* question) {
  WireTag tag;
  uint64_t number = 0;
  while (!proto.AtEnd()) {
    if (!proto.ReadTag(&tag)) return false;
    if (tag.field == kContainingType && tag.type == WireType::kLengthDelimited) {
      if (!proto.ReadString(&question->name)) return false;
    } else if (tag.field == kExtensionNumber && tag.type == WireType::kVarint) {
      if (!proto.ReadVarint(&number)) return false;
      question->extension_number = static_cast<int32_t>(number);
    } else if (!proto.SkipField(tag)) {
      return false;
    }
  }
  return true;
}

bool ReadField(WireReader* proto, WireTag tag, Question* question) {
  if (tag.type != WireType::kLengthDelimited) return proto->SkipField(tag);
  if (tag.field == kHost) return proto->ReadString(&question->host);
  if (tag.field < kFileByFilename || tag.field > kListServices) return proto->SkipField(tag);
  question->field = tag.field;
  if (tag.field != kFileContainingExtension) return proto->ReadString(&question->name);
  WireReader extension;
  return proto->ReadDelimited(&extension) && ReadExtension(extension, question);
}

bool ReadQuestion(WireReader proto, Question* question) {
  WireTag tag;
  while (!proto.AtEnd()) {
    if (!proto.ReadTag(&tag) || !ReadField(&proto, tag, question)) return false;
  }
  return true;
}

void AppendVarint(uint32_t field, uint64_t value, std::string* to) {
  const size_t before_bytes = to->size();
  to->resize(before_bytes + base::TagBytes(field) + base::VarintBytes(value));
  base::WireWriter(to->data() + before_bytes).VarintField(field, value);
}

void AppendBytes(uint32_t field, std::string_view body, std::string* to) {
  const size_t before_bytes = to->size();
  to->resize(before_bytes + base::DelimitedBytes(field, body.size()));
  base::WireWriter(to->data() + before_bytes).BytesField(field, body);
}

Answer Error(base::Code code, const std::string& message) {
  Answer answer{kErrorResponse, {}};
  AppendVarint(kErrorCode, static_cast<uint64_t>(code), &answer.body);
  AppendBytes(kErrorMessage, message, &answer.body);
  return answer;
}

Answer Unknown(const std::string& what) {
  return Error(base::Code::kNotFound, "the server has no " + what);
}

Answer File(const ReflectionTable& table, const std::string& name) {
  const auto file = table.files.find(name);
  if (file == table.files.end()) return Unknown("file '" + name + "'");
  return {kFileDescriptorResponse, file->second};
}

Answer FileOfSymbol(const ReflectionTable& table, const std::string& symbol) {
  const auto file_name = table.symbols.find(symbol);
  if (file_name == table.symbols.end()) return Unknown("symbol '" + symbol + "'");
  return File(table, file_name->second);
}

Answer FileOfExtension(const ReflectionTable& table, const Question& question) {
  const auto extensions = table.extensions.find(question.name);
  if (extensions != table.extensions.end()) {
    const auto file_name = extensions->second.find(question.extension_number);
    if (file_name != extensions->second.end()) return File(table, file_name->second);
  }
  return Unknown("extension " + std::to_string(question.extension_number) + " of '" +
                 question.name + "'");
}

Answer ExtensionNumbers(const ReflectionTable& table, const std::string& type) {
  const auto extensions = table.extensions.find(type);
  const bool has_extensions = extensions != table.extensions.end();
  if (!has_extensions && table.symbols.count(type) == 0) return Unknown("message '" + type + "'");
  Answer answer{kExtensionNumbersResponse, {}};
  AppendBytes(kBaseTypeName, type, &answer.body);
  if (!has_extensions) return answer;
  for (const auto& [number, file] : extensions->second) {
    AppendVarint(kNumber, static_cast<uint64_t>(number), &answer.body);
  }
  return answer;
}

Answer AnswerTo(const ReflectionTable& table, const Question& question) {
  switch (question.field) {
    case kFileByFilename:
      return File(table, question.name);
    case kFileContainingSymbol:
      return FileOfSymbol(table, question.name);
    case kFileContainingExtension:
      return FileOfExtension(table, question);
    case kAllExtensionNumbers:
      return ExtensionNumbers(table, question.name);
    case kListServices:
      return {kListServicesResponse, table.services};
    default:
      return Error(base::Code::kUnimplemented, "the request asks for nothing that is known here");
  }
}

}  // namespace

base::StatusOr<std::string> AnswerReflection(const ReflectionTable& table, WireReader request) {
  Question question;
  if (!ReadQuestion(request, &question)) {
    return base::InvalidArgument(
        "the message's bytes are no grpc.reflection.v1.ServerReflectionRequest");
  }
  const Answer answer = AnswerTo(table, question);
  std::string original;
  request.AppendRest(&original);
  std::string response;
  response.reserve(question.host.size() + original.size() + answer.body.size() + 32);
  AppendBytes(kValidHost, question.host, &response);
  AppendBytes(kOriginalRequest, original, &response);
  AppendBytes(answer.field, answer.body, &response);
  return response;
}

void ReflectionService::HandleMessage(Call* call) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_closed_) return call->Finish({base::Code::kUnavailable, "the server is shutting down"});
    const auto has_ended = [](const std::weak_ptr<Call>& stream) { return stream.expired(); };
    streams_.erase(std::remove_if(streams_.begin(), streams_.end(), has_ended), streams_.end());
    const auto is_this = [&](const std::weak_ptr<Call>& stream) {
      return stream.lock().get() == call;
    };
    if (std::none_of(streams_.begin(), streams_.end(), is_this)) {
      streams_.push_back(call->shared_from_this());
    }
  }
  const base::StatusOr<std::string> answer = AnswerReflection(table_, call->request());
  if (!answer.ok()) return call->Finish(answer.status());
  call->Send(answer.value());
}

void ReflectionService::HandleEnd(Call* call) { call->Finish({}); }

void ReflectionService::Close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_closed_ = true;
  for (const std::weak_ptr<Call>& stream : streams_) {
    if (const auto call = stream.lock()) {
      call->Finish({base::Code::kUnavailable, "the server is shutting down"});
    }
  }
}

}  // namespace millpond::rpc
