/*
 * A library to preload into User Mode Linux. Debian's UML gives ptrace(2) less space for the registers of a process
 * than a CPU with AMX needs: reading them truncates them, writing them back fails, and UML panics. Here the request
 * covers all registers; those that UML does not know keep their values. UML calls ptrace from one thread.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/uio.h>

static char registers[64 << 10]; /* AMX needs 11 KiB */

long ptrace(enum __ptrace_request request, ...)
{
	static long (*next)(int, ...);
	va_list args;
	va_start(args, request);
	pid_t pid = va_arg(args, pid_t);
	void *addr = va_arg(args, void *);
	struct iovec *data = va_arg(args, void *);
	va_end(args);
	if (!next)
		next = dlsym(RTLD_NEXT, "ptrace");
	if ((request != PTRACE_GETREGSET && request != PTRACE_SETREGSET) || (long)addr != NT_X86_XSTATE)
		return next(request, pid, addr, data);

	struct iovec all = {registers, sizeof(registers)};
	if (next(PTRACE_GETREGSET, pid, addr, &all) < 0)
		return -1;
	if (data->iov_len > all.iov_len)
		data->iov_len = all.iov_len;
	if (request == PTRACE_GETREGSET) {
		memcpy(data->iov_base, registers, data->iov_len);
		return 0;
	}
	memcpy(registers, data->iov_base, data->iov_len);
	return next(PTRACE_SETREGSET, pid, addr, &all);
}
