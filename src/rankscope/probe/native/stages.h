/* Stages that a program names itself, and its own step numbers, once the set-up is over.

   The usual case of `rankscope.stage` and `rankscope.step`: a line that passes again what it passed before. Everything
   else goes to the functions of marks.py, and from there to the book of stages. */

#ifndef RANKSCOPE_STAGES_H
#define RANKSCOPE_STAGES_H

#include "ledger.h"

static PyObject *ZERO, *NO_KIND;
/* Set by `serve`: the books of stages (empty where no launcher listens), and what stands behind the shortcuts. */
static PyObject *BOOKS, *BEGIN, *END, *MARK, *DECLARE;

static int is_listening(void) {
    return BOOKS != NULL && PyList_GET_SIZE(BOOKS) > 0;
}

/* The ledger of the book that listens; NULL where all must go to Python. */
static Ledger *ready_ledger(void) {
    return LEDGER != NULL && LEDGER->ready && LEDGER->words != NULL && PyList_GET_ITEM(BOOKS, 0) == BOOK ? LEDGER : NULL;
}

/* The open stage; NULL without an exception where this is not the usual case. */
static PyObject *begin_stage(PyObject *name, PyFrameObject *frame) {
    Ledger *ledger = ready_ledger();
    PyObject *stack, *number, *stage = NULL, *tail;
    if (ledger == NULL) {
        return NULL;
    }
    unsigned long thread = PyThread_get_thread_ident();
    number = PyLong_FromUnsignedLong(thread);
    stack = number == NULL ? NULL : PyDict_GetItemWithError(ledger->open, number);
    Py_XDECREF(number);
    if (stack == NULL || !PyList_CheckExact(stack)) {
        PyErr_Clear();
        return NULL;
    }
    Py_ssize_t depth = PyList_GET_SIZE(stack);
    /* Below a constructor, whose frame tells whether it has ended, Python looks first. */
    if (depth > 0 && PyTuple_GET_ITEM(PyList_GET_ITEM(stack, depth - 1), 4) != ZERO) {
        return NULL;
    }
    tail = known_tail(ledger, name, frame, thread);
    number = tail == NULL ? NULL : PyIter_Next(ledger->begun);
    if (number != NULL) {
        uint64_t index = PyLong_AsUnsignedLongLong(number), now = now_ns();
        uint64_t *record = ledger->words + ledger->ring + (Py_ssize_t)(index % (uint64_t)ledger->slots) * ledger->stage_words;
        memcpy(record + 1, PyBytes_AS_STRING(tail), (size_t)ledger->tail_bytes);
        record[0] = now;
        ledger->words[ledger->stages] = index + 1;
        ledger->words[ledger->counters] = now;
        stage = PyTuple_Pack(5, number, NO_KIND, ZERO, stack, ZERO);
        if (stage != NULL && PyList_Append(stack, stage) < 0) {
            Py_CLEAR(stage);
        }
        Py_DECREF(number);
    }
    PyErr_Clear();
    return stage;
}

/* Whether it was the usual case. */
static int end_stage(PyObject *stage) {
    Ledger *ledger = ready_ledger();
    PyObject *stack = PyTuple_GET_SIZE(stage) == 5 ? PyTuple_GET_ITEM(stage, 3) : NULL;
    if (ledger == NULL || stack == NULL || !PyList_CheckExact(stack) || PyTuple_GET_ITEM(stage, 2) != ZERO) {
        return 0;
    }
    Py_ssize_t depth = PyList_GET_SIZE(stack);
    uint64_t index = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(stage, 0));
    if (depth == 0 || PyList_GET_ITEM(stack, depth - 1) != stage || PyErr_Occurred() ||
        PyList_SetSlice(stack, depth - 1, depth, NULL) < 0) {
        PyErr_Clear();
        return 0;
    }
    PyObject *passed = PyIter_Next(ledger->passed);
    uint64_t number = passed == NULL ? 0 : PyLong_AsUnsignedLongLong(passed), now = now_ns(), *words = ledger->words;
    Py_XDECREF(passed);
    PyErr_Clear();
    if (words[ledger->stages] - index <= (uint64_t)ledger->slots) {
        uint64_t *record = words + ledger->ring + (Py_ssize_t)(index % (uint64_t)ledger->slots) * ledger->stage_words;
        record[ledger->ended] = now;
        record[ledger->stage_words - 1] = number;
    }
    words[ledger->stages + 1] = number | (uint64_t)1 << 32; /* the set-up is over */
    words[ledger->counters] = now;
    return 1;
}

/* `rankscope.stage`, but for its use as a decorator. */
typedef struct {
    PyObject_HEAD
    PyObject *name;
    PyObject *state; /* The frame it was made in, until it is more than a mark; then the stage that is open, or None. */
} Stage;

static int stage_init(Stage *self, PyObject *args, PyObject *keywords) {
    static char *names[] = {"name", NULL};
    PyObject *name;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O:stage", names, &name)) {
        return -1;
    }
    PyObject *frame = is_listening() ? (PyObject *)PyEval_GetFrame() : NULL;
    replace(&self->name, name);
    replace(&self->state, frame == NULL ? Py_None : frame);
    return 0;
}

static PyObject *stage_enter(Stage *self, PyObject *unused) {
    PyFrameObject *frame = is_listening() ? PyEval_GetFrame() : NULL;
    if (frame != NULL && self->name != NULL) {
        PyObject *state = begin_stage(self->name, frame);
        if (state == NULL) {
            state = PyObject_CallFunctionObjArgs(BEGIN, self->name, frame, NULL);
        }
        if (state == NULL) {
            return NULL;
        }
        replace(&self->state, state);
        Py_DECREF(state);
    }
    return Py_NewRef((PyObject *)self);
}

static PyObject *stage_exit(Stage *self, PyObject *const *args, Py_ssize_t count) {
    PyObject *state = self->state;
    if (state != NULL && PyTuple_CheckExact(state)) {
        Py_INCREF(state);
        replace(&self->state, Py_None);
        int failed = count > 0 && args[0] != Py_None;
        if (failed || !end_stage(state)) {
            PyObject *result = PyObject_CallFunctionObjArgs(END, state, failed ? Py_True : Py_False, NULL);
            Py_DECREF(state);
            return result;
        }
        Py_DECREF(state);
    }
    Py_RETURN_NONE;
}

/* Neither entered nor used as a decorator: a statement of its own, gone as soon as it is made. */
static void stage_finalize(Stage *self) {
    if (self->state != NULL && PyFrame_Check(self->state) && is_listening()) {
        PyObject *type, *value, *traceback, *result;
        PyErr_Fetch(&type, &value, &traceback);
        result = PyObject_CallFunctionObjArgs(MARK, self->name, self->state, NULL);
        if (result == NULL) {
            PyErr_WriteUnraisable((PyObject *)self);
        }
        Py_XDECREF(result);
        PyErr_Restore(type, value, traceback);
    }
}

static int stage_traverse(Stage *self, visitproc visit, void *arg) {
    Py_VISIT(self->name);
    Py_VISIT(self->state);
    return 0;
}

static int stage_clear(Stage *self) {
    Py_CLEAR(self->name);
    Py_CLEAR(self->state);
    return 0;
}

static void stage_dealloc(Stage *self) {
    if (PyObject_CallFinalizerFromDealloc((PyObject *)self) < 0) {
        return;
    }
    PyObject_GC_UnTrack(self);
    stage_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMemberDef stage_members[] = {
    {"_name", T_OBJECT_EX, offsetof(Stage, name), 0, NULL},
    {"_state", T_OBJECT_EX, offsetof(Stage, state), 0, NULL},
    {NULL},
};

static PyMethodDef stage_methods[] = {
    {"__enter__", (PyCFunction)stage_enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))stage_exit, METH_FASTCALL, NULL},
    {NULL},
};

static PyTypeObject StageType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "rankscope.probe._quick.Stage",
    .tp_basicsize = sizeof(Stage),
    .tp_doc = "Stage(name)\n--\n\nA stage of the program, by name.",
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)stage_init,
    .tp_dealloc = (destructor)stage_dealloc,
    .tp_finalize = (destructor)stage_finalize,
    .tp_traverse = (traverseproc)stage_traverse,
    .tp_clear = (inquiry)stage_clear,
    .tp_methods = stage_methods,
    .tp_members = stage_members,
};

/* `rankscope.step`, where a launcher listens. */
static PyObject *declare_step(PyObject *module, PyObject *number) {
    Ledger *ledger = is_listening() ? ready_ledger() : NULL;
    int overflow = 0;
    if (ledger != NULL && PyLong_CheckExact(number)) {
        long long value = PyLong_AsLongLongAndOverflow(number, &overflow);
        if (!overflow) {
            ledger->words[ledger->stages + 2] = (uint64_t)value;
            ledger->words[ledger->counters] = now_ns();
            Py_RETURN_NONE;
        }
    }
    return PyObject_CallOneArg(DECLARE, number);
}

static PyObject *serve(PyObject *module, PyObject *args) {
    PyObject *books, *begin, *end, *mark, *declare;
    if (!PyArg_ParseTuple(args, "O!OOOO", &PyList_Type, &books, &begin, &end, &mark, &declare)) {
        return NULL;
    }
    replace(&BOOKS, books);
    replace(&BEGIN, begin);
    replace(&END, end);
    replace(&MARK, mark);
    replace(&DECLARE, declare);
    Py_RETURN_NONE;
}

#endif
