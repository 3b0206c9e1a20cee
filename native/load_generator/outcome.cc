#include "native/load_generator/outcome.h"

#include <fstream>

namespace millpond::load_generator {
namespace {

constexpr char kMagic[8] = {'M', 'P', 'O', 'U', 'T', 'C', '0', '1'};

// The head of the file. The four arrays of the issued requests follow, and then a ReplyHeader and
// the bytes of each reply.
struct Header {
  char magic[8];
  int64_t issued_count;
  int64_t reply_count;
  int64_t started_ns;
  int64_t cpu_ns;
  int64_t is_realtime;
};

struct ReplyHeader {
  int32_t payload;
  int32_t code;
  int64_t size_bytes;
};

class File {
 public:
  explicit File(const std::string& path) : stream_(path, std::ios::binary | std::ios::trunc) {}

  void Put(const void* data, size_t size_bytes) {
    stream_.write(static_cast<const char*>(data), static_cast<std::streamsize>(size_bytes));
  }
  template <typename T>
  void PutFirst(const std::vector<T>& values, int64_t count) {
    Put(values.data(), count * sizeof(T));
  }
  bool Close() {
    stream_.close();
    return !stream_.fail();
  }

 private:
  std::ofstream stream_;
};

}  // namespace

Outcome::Outcome(const Plan& plan)
    : issued_ns(plan.offsets_ns.size()),
      completed_ns(plan.offsets_ns.size()),
      codes(plan.offsets_ns.size()),
      reply_of(plan.offsets_ns.size()),
      replies(plan.payloads.size(), plan.kept_reply_bytes_max) {}

base::Status WriteOutcome(const Outcome& outcome, const std::string& path) {
  const std::deque<ReplyTable::Reply>& replies = outcome.replies.replies();
  Header header{};
  std::copy(std::begin(kMagic), std::end(kMagic), header.magic);
  header.issued_count = outcome.issued_count;
  header.reply_count = static_cast<int64_t>(replies.size());
  header.started_ns = outcome.started_ns;
  header.cpu_ns = outcome.cpu_ns;
  header.is_realtime = outcome.is_realtime ? 1 : 0;

  File file(path);
  file.Put(&header, sizeof header);
  file.PutFirst(outcome.issued_ns, outcome.issued_count);
  file.PutFirst(outcome.completed_ns, outcome.issued_count);
  file.PutFirst(outcome.codes, outcome.issued_count);
  file.PutFirst(outcome.reply_of, outcome.issued_count);
  for (const ReplyTable::Reply& reply : replies) {
    const ReplyHeader reply_header{reply.payload, reply.code,
                                   static_cast<int64_t>(reply.bytes.size())};
    file.Put(&reply_header, sizeof reply_header);
    file.Put(reply.bytes.data(), reply.bytes.size());
  }
  if (!file.Close()) return base::FailedPrecondition("outcome '" + path + "' cannot be written");
  return {};
}

}  // namespace millpond::load_generator
