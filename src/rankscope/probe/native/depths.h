/* In how many recorded calls each thread is. */

#ifndef RANKSCOPE_DEPTHS_H
#define RANKSCOPE_DEPTHS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <pthread.h>

/* The system's number of this thread. Asking the system takes longer than all else here; a child made by fork asks anew,
   as its thread has another number. */
static unsigned long FORKS;
static __thread unsigned long THREAD, THREAD_FORKS;

static void count_forks(void) {
    FORKS++;
}

static unsigned long thread_number(void) {
    if (THREAD == 0 || THREAD_FORKS != FORKS) {
        THREAD = PyThread_get_thread_native_id();
        THREAD_FORKS = FORKS;
    }
    return THREAD;
}

typedef struct {
    unsigned long thread;
    long depth;
} Depth;

/* A short table, the newest threads last: few threads make such calls, and most of them from the first on. */
typedef struct {
    PyObject_HEAD
    Depth *threads;
    Py_ssize_t count, room;
} Depths;

/* NULL where there is no memory for another thread; of one that was asked for before, never. */
static Depth *depth_of(Depths *depths, unsigned long thread) {
    for (Py_ssize_t at = 0; at < depths->count; at++) {
        if (depths->threads[at].thread == thread) {
            return &depths->threads[at];
        }
    }
    /* Threads that are in no call are the first to make room: they may have ended. */
    if (depths->count == depths->room) {
        Py_ssize_t kept = 0;
        for (Py_ssize_t at = 0; at < depths->count; at++) {
            if (depths->threads[at].depth > 0) {
                depths->threads[kept++] = depths->threads[at];
            }
        }
        depths->count = kept;
    }
    if (depths->count == depths->room) {
        Py_ssize_t room = depths->room == 0 ? 16 : 2 * depths->room;
        Depth *larger = PyMem_Resize(depths->threads, Depth, (size_t)room);
        if (larger == NULL) {
            return NULL;
        }
        depths->threads = larger;
        depths->room = room;
    }
    Depth *added = &depths->threads[depths->count++];
    added->thread = thread;
    added->depth = 0;
    return added;
}

static PyObject *depths_deeper(Depths *depths, PyObject *unused) {
    Depth *own = depth_of(depths, thread_number());
    return own == NULL ? PyErr_NoMemory() : PyLong_FromLong(own->depth++);
}

/* A process that was made by fork within a call leaves what it never entered under its own number. */
static long leave(Depths *depths, unsigned long thread) {
    Depth *own = depth_of(depths, thread);
    return own == NULL || own->depth == 0 ? 0 : --own->depth;
}

static PyObject *depths_shallower(Depths *depths, PyObject *unused) {
    return PyLong_FromLong(leave(depths, thread_number()));
}

static void depths_dealloc(Depths *depths) {
    PyMem_Free(depths->threads);
    PyObject_Free(depths);
}

static PyMethodDef depths_methods[] = {
    {"deeper", (PyCFunction)depths_deeper, METH_NOARGS, NULL},
    {"shallower", (PyCFunction)depths_shallower, METH_NOARGS, NULL},
    {NULL},
};

static PyTypeObject DepthsType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "rankscope.probe._quick.Depths",
    .tp_basicsize = sizeof(Depths),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_dealloc = (destructor)depths_dealloc,
    .tp_methods = depths_methods,
};

#endif
