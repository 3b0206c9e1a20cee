// The output of a connection: its order, its bound, and its bytes in the budget. No socket.

#include "native/rpc/output_writer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>

#include "native/base/byte_budget.h"
#include "tests/native/fake_session.h"

namespace millpond::rpc {
namespace {

using State = Transport::State;
using testing::FakeSession;

// A socket that takes `room` more bytes.
struct Socket {
  Transport::Result Write(const iovec* pieces, size_t count) {
    if (is_closed) return {State::kClosed, 0};
    if (room == 0) return {State::kWouldBlock, 0};
    size_t size = 0;
    for (size_t i = 0; i < count && room > 0; ++i) {
      const size_t part = std::min(room, pieces[i].iov_len);
      bytes.append(static_cast<const char*>(pieces[i].iov_base), part);
      room -= part;
      size += part;
    }
    return {State::kOk, size};
  }

  size_t room = 0;
  bool is_closed = false;
  std::string bytes;
};

class OutputWriterTest : public ::testing::Test {
 protected:
  OutputWriter::Written Write() { return writer_.Write(&session_, &socket_); }

  base::ByteBudget budget_{1};
  OutputWriter writer_{&budget_};
  FakeSession session_;
  Socket socket_;
};

TEST_F(OutputWriterTest, WritesAllThatTheSocketTakes) {
  session_.to_produce = "abc";
  socket_.room = 2;
  OutputWriter::Written written = Write();
  EXPECT_EQ(written.state, State::kWouldBlock);
  EXPECT_TRUE(written.is_any);
  written = Write();
  EXPECT_EQ(written.state, State::kWouldBlock);
  EXPECT_FALSE(written.is_any);
  socket_.room = 100;
  EXPECT_EQ(Write().state, State::kOk);
  EXPECT_EQ(socket_.bytes, "abc");
}

TEST_F(OutputWriterTest, BrokenSessionAndClosedSocketAreClosed) {
  session_.is_broken = true;
  EXPECT_EQ(Write().state, State::kClosed);
  session_.is_broken = false;
  session_.to_produce = "a";
  socket_.is_closed = true;
  EXPECT_EQ(Write().state, State::kClosed);
}

TEST_F(OutputWriterTest, ClientThatReadsNothingTakesNoMoreThanTheBound) {
  session_.to_produce = std::string(10 * OutputWriter::kBytesMax, 'x');
  session_.part_bytes = 10'000;
  EXPECT_EQ(Write().state, State::kWouldBlock);
  EXPECT_FALSE(writer_.Reserve());
  const size_t taken = 10 * OutputWriter::kBytesMax - session_.to_produce.size();
  EXPECT_GE(taken, OutputWriter::kBytesMax);
  EXPECT_LT(taken, OutputWriter::kBytesMax + session_.part_bytes);
  EXPECT_EQ(budget_.in_use_bytes(), static_cast<int64_t>(OutputWriter::kBytesMax));
}

TEST_F(OutputWriterTest, WithoutMemoryOnlyTheFirstBytesWait) {
  base::ByteBudget::Share all(&budget_, base::ByteBudget::Use::kConnection);
  ASSERT_TRUE(all.Resize(2 * base::ByteBudget::kReserveBytes));
  session_.to_produce = std::string(OutputWriter::kBytesMax, 'x');
  session_.part_bytes = 100;
  EXPECT_EQ(Write().state, State::kWouldBlock);
  EXPECT_LT(OutputWriter::kBytesMax - session_.to_produce.size(),
            OutputWriter::kFreeBytes + session_.part_bytes);
  EXPECT_FALSE(writer_.Reserve());
  socket_.room = 2 * OutputWriter::kBytesMax;
  EXPECT_EQ(Write().state, State::kOk);
  EXPECT_EQ(socket_.bytes.size(), OutputWriter::kBytesMax);
}

// However much the session has and the socket takes at a time, the bytes keep their order, and the
// budget has no more of them once all are written.
TEST_F(OutputWriterTest, BytesKeepTheirOrderInRandomParts) {
  std::mt19937 random(1);
  std::string all;
  for (int i = 0; i < 3'000; ++i) {
    std::string some(random() % 2 == 0 ? random() % 100 : random() % 20'000, '\0');
    for (char& byte : some) byte = static_cast<char>(random());
    all += some;
    session_.to_produce += some;
    session_.part_bytes = 1 + random() % 10'000;
    socket_.room = random() % 3 == 0 ? 0 : random() % 30'000;
    ASSERT_NE(Write().state, State::kClosed);
  }
  socket_.room = SIZE_MAX;
  EXPECT_EQ(Write().state, State::kOk);
  EXPECT_EQ(socket_.bytes, all);
  EXPECT_TRUE(writer_.Reserve());
  EXPECT_EQ(budget_.in_use_bytes(), 0);
}

}  // namespace
}  // namespace millpond::rpc
