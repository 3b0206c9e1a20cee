#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace millpond::base {

// The canonical codes of gRPC, by number: https://grpc.github.io/grpc/core/md_doc_statuscodes.html
enum class Code : int8_t {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
  kUnauthenticated = 16,
};

inline constexpr int kCodeCount = 17;

// Returns the name as gRPC's documents spell it, like "INVALID_ARGUMENT".
const char* CodeName(Code code);

// An error as a value: a code for the program, and a message with the offending value and the
// remedy for the reader. OK carries no message and allocates nothing.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

// Returns `status` with a message of at most kMaxErrorMessageBytes (limits.h), cut if it is longer:
// a message may quote text of any length from a client. Never cuts within a character, because
// clients read messages as UTF-8.
Status WithShortMessage(const Status& status);

inline Status InvalidArgument(std::string message) {
  return {Code::kInvalidArgument, std::move(message)};
}
inline Status NotFound(std::string message) { return {Code::kNotFound, std::move(message)}; }
inline Status FailedPrecondition(std::string message) {
  return {Code::kFailedPrecondition, std::move(message)};
}
inline Status DataLoss(std::string message) { return {Code::kDataLoss, std::move(message)}; }
inline Status Internal(std::string message) { return {Code::kInternal, std::move(message)}; }

// A value, or the error that explains its absence.
template <typename T>
class [[nodiscard]] StatusOr {
 public:
  StatusOr(T value) : value_(std::move(value)) {}          // NOLINT(google-explicit-constructor)
  StatusOr(Status status) : status_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() { return *value_; }
  const T& value() const { return *value_; }

 private:
  Status status_;
  std::optional<T> value_;
};

// Moves the value of `from` to `*to`, which keeps its own if there is none. Returns the status of
// `from`.
template <typename T>
Status MoveValue(StatusOr<T> from, T* to) {
  if (from.ok()) *to = std::move(from.value());
  return from.status();
}

}  // namespace millpond::base

// Returns from the enclosing function if `expression` is a Status that is not OK.
#define MILLPOND_RETURN_IF_ERROR(expression)                \
  do {                                                      \
    ::millpond::base::Status status_of_step = (expression); \
    if (!status_of_step.ok()) return status_of_step;        \
  } while (false)
