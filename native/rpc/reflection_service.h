#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "native/base/wire_reader.h"
#include "native/rpc/call.h"

namespace millpond::rpc {

// The descriptions of a server's services. The control plane computes them.
struct ReflectionTable {
  using FileOfNumber = std::map<int32_t, std::string>;

  std::string services;                            // a serialized ListServiceResponse
  std::map<std::string, std::string> files;        // name → a serialized FileDescriptorResponse
  std::map<std::string, std::string> symbols;      // full name → name of its file
  std::map<std::string, FileOfNumber> extensions;  // extended message → field number → file
};

// Returns the answer to one ServerReflectionRequest of
// github.com/grpc/grpc/blob/master/src/proto/grpc/reflection/v1/reflection.proto; v1alpha has the
// same bytes. An unknown name gets an answer with an error in it. INVALID_ARGUMENT if the bytes do
// not parse as a request.
base::StatusOr<std::string> AnswerReflection(const ReflectionTable& table,
                                             base::WireReader request);

// grpc.reflection.v1 and v1alpha.
//
// Thread: HandleMessage and HandleEnd: request threads, several at once, because the table never
// changes. Close: the control plane.
class ReflectionService final : public StreamingHandler {
 public:
  // Borrows `table`.
  explicit ReflectionService(const ReflectionTable& table) : table_(table) {}

  void HandleMessage(Call* call) override;
  void HandleEnd(Call* call) override;
  // Ends every stream, because the server drains.
  void Close();

 private:
  const ReflectionTable& table_;
  std::mutex mutex_;  // only requests for reflection take it
  bool is_closed_ = false;
  std::vector<std::weak_ptr<Call>> streams_;
};

}  // namespace millpond::rpc
