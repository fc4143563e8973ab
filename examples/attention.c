/* Causal attention of two heads over four positions, in C99. */
#include <rowmax/c_api.h>

#include <stdio.h>
#include <stdlib.h>

int main(void) {
  static float q[64], k[64], v[64], out[64], lse[8];
  const int64_t shape[4] = {1, 4, 2, 8}; /* batch, positions, heads, head dim */
  const int64_t lse_shape[3] = {1, 2, 4};
  char message[256];
  rowmax_problem problem = {.struct_size = sizeof(rowmax_problem)};
  rowmax_tensors t = {.struct_size = sizeof(rowmax_tensors)};
  rowmax_plan* plan = NULL;
  rowmax_status status;
  size_t bytes;
  char* memory;
  int i;
  for (i = 48; i < 64; ++i) {
    v[i] = 4.0f; /* values of position 3 */
  }
  status =
      rowmax_problem_parse("forward f32 b1 h2 s4 d8 causal", &problem, message, sizeof message);
  if (status == ROWMAX_OK) {
    status = rowmax_plan_create(&problem, NULL, &plan, message, sizeof message);
  }
  t.q = rowmax_contiguous(q, ROWMAX_F32, 4, shape);
  t.k = rowmax_contiguous(k, ROWMAX_F32, 4, shape);
  t.v = rowmax_contiguous(v, ROWMAX_F32, 4, shape);
  t.out = rowmax_contiguous(out, ROWMAX_F32, 4, shape);
  t.lse = rowmax_contiguous(lse, ROWMAX_F32, 3, lse_shape);
  bytes = rowmax_plan_workspace_bytes(plan, 0);
  memory = malloc(bytes + 63); /* the workspace is aligned to 64 bytes */
  if (status == ROWMAX_OK && memory != NULL) {
    status = rowmax_execute(plan, &t, memory + (64 - (uintptr_t)memory % 64) % 64, bytes, NULL,
                            message, sizeof message);
  }
  free(memory);
  rowmax_plan_destroy(plan);
  printf("%s: row 3 = %g, lse = %g\n", status == ROWMAX_OK ? "ok" : message, out[48], lse[3]);
  return status == ROWMAX_OK ? 0 : 1;
}
